//! Between text and token ids, one token at a time.
//!
//! What a `Decoder` has shown is never taken back: it holds back bytes that are not yet a character and text that may
//! yet become a stop string.

use anyhow::Result;

/// Special tokens that a tokenizer puts around every text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// Ids before the text.
    pub before: Vec<u32>,
    /// Ids after it.
    pub after: Vec<u32>,
}

/// No tokens around a text.
pub static BARE: Template = Template { before: Vec::new(), after: Vec::new() };

impl Template {
    /// The tokens of a text as a model is fed them. `true` if the text spells out by itself what would be put before it: that
    /// stands there once.
    pub fn around(&self, ids: &[u32]) -> (Vec<u32>, bool) {
        let spelled = !self.before.is_empty() && ids.starts_with(&self.before);
        let before: &[u32] = if spelled { &[] } else { &self.before };
        ([before, ids, &self.after].concat(), spelled)
    }
}

/// A tokenizer.
pub trait Text: Send + Sync {
    /// Number of token ids.
    fn vocab(&self) -> usize;

    /// Token ids of a text alone; what a model is fed has the [`Text::template`] around it.
    fn encode(&self, text: &str) -> Result<Vec<u32>>;

    /// The tokens that belong around every text, such as the one that begins it.
    fn template(&self) -> &Template {
        &BARE
    }

    /// Takes in one more id and returns the text that is now certain; `None` while a character is incomplete.
    fn step(&self, state: &mut TextState, id: u32) -> Result<Option<String>>;
}

/// Where the decoding of one sequence stands.
#[derive(Clone, Debug, Default)]
pub struct TextState {
    /// The ids of the last text that was returned, and those after it, whose text is not certain yet.
    pub ids: Vec<u32>,
    /// How many of `ids` have been returned as text.
    pub returned: usize,
}

/// Turns ids into text and looks for stop strings.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    state: TextState,
    stops: Vec<String>,
    held: String,
}

/// What one more id brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Text to show now.
    pub text: String,
    /// Whether a stop string is complete; `text` ends before it.
    pub stopped: bool,
}

impl Decoder {
    /// A decoder at the start of an output that ends at any of `stops`.
    pub fn new(stops: &[String]) -> Decoder {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Decoder { stops, ..Decoder::default() }
    }

    /// Takes in one more id.
    pub fn push(&mut self, text: &dyn Text, id: u32) -> Result<Decoded> {
        if let Some(piece) = text.step(&mut self.state, id)? {
            self.held.push_str(&piece);
        }
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.held.truncate(at);
            return Ok(Decoded { text: std::mem::take(&mut self.held), stopped: true });
        }
        let rest = self.held.split_off(self.held.len() - self.possible_stop());
        Ok(Decoded { text: std::mem::replace(&mut self.held, rest), stopped: false })
    }

    /// The text still held back, when no more ids will come.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes at the end of the held text that begin a stop string; the longest such end.
    fn possible_stop(&self) -> usize {
        let begins = |stop: &String| {
            let ends = stop.char_indices().map(|(at, _)| at).filter(|&at| at > 0);
            ends.filter(|&at| self.held.ends_with(&stop[..at])).max().unwrap_or(0)
        };
        self.stops.iter().map(begins).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every id is one letter.
    struct Letters;

    impl Text for Letters {
        fn vocab(&self) -> usize {
            128
        }

        fn encode(&self, text: &str) -> Result<Vec<u32>> {
            Ok(text.bytes().map(u32::from).collect())
        }

        fn step(&self, _: &mut TextState, id: u32) -> Result<Option<String>> {
            Ok(char::from_u32(id).map(String::from))
        }
    }

    /// `expected` lists what is shown after each letter; `!` marks a stop.
    fn check(stops: &[&str], output: &str, expected: &[&str], finish: &str) {
        let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
        let mut decoder = Decoder::new(&stops);
        for (id, expected) in Letters.encode(output).unwrap().into_iter().zip(expected) {
            let got = decoder.push(&Letters, id).unwrap();
            let shown = format!("{}{}", got.text, if got.stopped { "!" } else { "" });
            assert_eq!(shown, *expected, "{output}");
        }
        assert_eq!(decoder.finish(), finish, "{output}");
    }

    #[test]
    fn text_is_held_back_only_while_it_may_become_a_stop_string() {
        check(&[], "abc", &["a", "b", "c"], "");
        check(&["bc"], "abcd", &["a", "", "!"], "");
        check(&["bc"], "abd", &["a", "", "bd"], "");
        check(&["aab"], "aaab", &["", "", "a", "!"], "");
        check(&["bcx", "c"], "abc", &["a", "", "b!"], "");
        check(&["xyz"], "axy", &["a", "", ""], "xy");
        check(&[""], "ab", &["a", "b"], "");
    }
}
