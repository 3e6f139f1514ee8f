//! Requests from prompts.
//!
//! Request i is prompt i, arrives at time 0, and has at least one prompt token and room for at least one more.

use anyhow::{Context, Result, bail, ensure};
use specquant_core::{BARE, Request, RunSpec, Template, Text};

use crate::prompts::Prompt;

/// Requests, and what was noticed in making them.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// One for each prompt.
    pub requests: Vec<Request>,
    /// What a reader of the results should know, in a sentence; empty if there is nothing.
    pub notes: Vec<String>,
}

/// One request for each prompt, for a model with room for `context` tokens. All have the spec's seed: the number of a
/// request is part of what its random numbers are drawn from.
pub fn generate(spec: &RunSpec, prompts: &[Prompt], text: &dyn Text, context: usize) -> Result<Generated> {
    let (mut spelled, mut skipped): (Vec<&str>, Vec<String>) = (Vec::new(), Vec::new());
    let template = if spec.workload.special_tokens { text.template() } else { &BARE };
    let mut requests = Vec::new();
    for prompt in prompts {
        let (tokens, twice) = match tokens(prompt, text, template, context) {
            Ok(tokens) => tokens,
            Err(error) if spec.workload.skip_invalid => {
                skipped.push(format!("{error:#}"));
                continue;
            }
            Err(error) => return Err(error),
        };
        spelled.extend(twice.then_some(prompt.id.as_str()));
        requests.push(Request {
            id: requests.len() as u64,
            arrival: 0,
            prompt: tokens,
            max_new_tokens: spec.workload.max_new_tokens,
            ignore_eos: spec.workload.ignore_eos,
            stop: spec.workload.stop.clone(),
            sampling: spec.sampling,
            seed: spec.seed,
        });
    }
    if let Some(first) = skipped.first().filter(|_| requests.is_empty()) {
        bail!("no prompt can be run, the first because {first}");
    }
    Ok(Generated { requests, notes: notes(&spelled, &skipped, prompts.len()) })
}

/// What is said of prompts that begin with the token that would be put before them, and of those that were skipped.
fn notes(spelled: &[&str], skipped: &[String], all: usize) -> Vec<String> {
    let begun = spelled.first().map(|first| {
        let n = spelled.len();
        format!(
            "{n} of {all} prompts, `{first}` first, begin with the text of the token that the tokenizer puts before every prompt: \
             it was not added again"
        )
    });
    let lost = skipped.first().map(|first| {
        format!("{} of {all} prompts cannot be run and were skipped, the first because {first}", skipped.len())
    });
    begun.into_iter().chain(lost).collect()
}

/// Bytes of a prompt for each token of the context, from which on it is first tokenized in part: more than tokens have.
const HEAD: usize = 16;

fn tokens(prompt: &Prompt, text: &dyn Text, template: &Template, context: usize) -> Result<(Vec<u32>, bool)> {
    let id = &prompt.id;
    // A text that is far too long is not tokenized whole, which would take a hundred times its memory.
    let head = prompt.text.floor_char_boundary(context.saturating_mul(HEAD));
    if head < prompt.text.len() {
        let n = text.encode(&prompt.text[..head]).with_context(|| format!("prompt `{id}`"))?.len();
        ensure!(
            n <= 2 * context,
            "prompt `{id}` has {} bytes, of which the first {head} alone are {n} tokens, and the model's context is {context}: \
             shorten it, or use a model with a longer context",
            prompt.text.len()
        );
    }
    let ids = text.encode(&prompt.text).with_context(|| format!("prompt `{id}`"))?;
    ensure!(!ids.is_empty(), "prompt `{id}` has no token: give it a text or remove it");
    let (ids, twice) = template.around(&ids);
    ensure!(
        ids.len() < context,
        "prompt `{id}` has {} tokens and the model's context is {context}: shorten it to {} tokens, or use a model with a \
         longer context",
        ids.len(),
        context.saturating_sub(1)
    );
    Ok((ids, twice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use specquant_core::{Sampling, TextState, Workload};

    /// Every byte is a token; a `?` cannot be encoded.
    #[derive(Default)]
    struct Bytes(Template);

    impl Text for Bytes {
        fn vocab(&self) -> usize {
            256
        }

        fn encode(&self, text: &str) -> Result<Vec<u32>> {
            if text.contains('?') {
                bail!("no token for `?`");
            }
            Ok(text.bytes().map(u32::from).collect())
        }

        fn template(&self) -> &Template {
            &self.0
        }

        fn step(&self, _: &mut TextState, _: u32) -> Result<Option<String>> {
            Ok(None)
        }
    }

    fn spec() -> RunSpec {
        RunSpec {
            seed: 7,
            sampling: Sampling { temperature: 0.5, ..Sampling::GREEDY },
            workload: Workload { max_new_tokens: 3, ignore_eos: true, stop: vec!["x".into()], ..Workload::default() },
            ..RunSpec::default()
        }
    }

    /// The prompts are named `p0`, `p1` and so on.
    fn check(texts: &[&str], context: usize, expected: Result<&[&[u32]], &str>) {
        let prompts: Vec<Prompt> = (0..)
            .zip(texts)
            .map(|(n, text): (u32, _)| Prompt { id: format!("p{n}"), category: None, text: text.to_string() })
            .collect();
        match (generate(&spec(), &prompts, &Bytes::default(), context), expected) {
            (Ok(Generated { requests: got, notes }), Ok(expected)) => {
                assert_eq!(got.iter().map(|request| request.prompt.as_slice()).collect::<Vec<_>>(), expected);
                assert!(notes.is_empty() && (0..).zip(&got).all(|(id, request)| request.id == id));
            }
            (Err(got), Err(expected)) => assert_eq!(format!("{got:#}"), expected, "{texts:?}"),
            (got, expected) => panic!("{texts:?}: {got:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn prompts_become_requests_if_they_fit() {
        check(&[], 8, Ok(&[]));
        check(&["a", "bc"], 8, Ok(&[&[97], &[98, 99]]));
        check(&["abc"], 4, Ok(&[&[97, 98, 99]]));
        check(
            &["a", "abc"],
            3,
            Err(
                "prompt `p1` has 3 tokens and the model's context is 3: shorten it to 2 tokens, or use a model with a \
                 longer context",
            ),
        );
        let long = "a".repeat(200);
        let expected = "prompt `p0` has 200 bytes, of which the first 48 alone are 48 tokens, and the model's context is 3: \
                        shorten it, or use a model with a longer context";
        check(&[&long], 3, Err(expected));
        check(&["a", ""], 8, Err("prompt `p1` has no token: give it a text or remove it"));
        check(&["?"], 8, Err("prompt `p0`: no token for `?`"));
    }

    #[test]
    fn a_request_carries_what_the_spec_says() {
        let prompt = Prompt { id: "p".into(), category: None, text: "a".into() };
        let expected = Request {
            id: 0,
            arrival: 0,
            prompt: vec![97],
            max_new_tokens: 3,
            ignore_eos: true,
            stop: vec!["x".into()],
            sampling: Sampling { temperature: 0.5, ..Sampling::GREEDY },
            seed: 7,
        };
        assert_eq!(generate(&spec(), &[prompt], &Bytes::default(), 8).unwrap().requests, [expected]);
    }

    #[test]
    fn prompts_that_cannot_be_run_are_skipped_and_counted_if_that_is_asked_for() {
        let prompts = ["abcdefgh", "a", "?"].map(|text| Prompt { id: text.into(), category: None, text: text.into() });
        let workload = Workload { skip_invalid: true, ..Workload::default() };
        let spec = RunSpec { workload, ..RunSpec::default() };
        let Generated { requests, notes } = generate(&spec, &prompts, &Bytes::default(), 8).unwrap();
        assert_eq!((requests.len(), requests[0].id, &requests[0].prompt[..]), (1, 0, &[97][..]));
        assert!(
            notes[0].starts_with("2 of 3 prompts cannot be run and were skipped, the first because prompt `abcdefgh`")
        );
        let error = generate(&spec, &prompts[..1], &Bytes::default(), 8).unwrap_err().to_string();
        assert!(error.starts_with("no prompt can be run, the first because prompt `abcdefgh` has 8 tokens"), "{error}");
    }

    #[test]
    fn a_template_stands_around_every_prompt_once() {
        let text = Bytes(Template { before: vec![60], after: vec![62] });
        let prompts = ["a", "<b", "<"].map(|text| Prompt { id: text.into(), category: None, text: text.into() });
        let check = |special_tokens, expected: [&[u32]; 3], notes: usize| {
            let spec = RunSpec { workload: Workload { special_tokens, ..Workload::default() }, ..RunSpec::default() };
            let got = generate(&spec, &prompts, &text, 8).unwrap();
            assert_eq!(got.requests.iter().map(|request| request.prompt.as_slice()).collect::<Vec<_>>(), expected);
            assert_eq!(got.notes.len(), notes, "{:?}", got.notes);
            assert!(got.notes.iter().all(|note| note.starts_with("2 of 3 prompts, `<b` first")), "{:?}", got.notes);
        };
        check(true, [&[60, 97, 62], &[60, 98, 62], &[60, 62]], 1);
        check(false, [&[97], &[60, 98], &[60]], 0);
        let empty = [Prompt { id: "p".into(), category: None, text: String::new() }];
        let error = generate(&RunSpec::default(), &empty, &text, 8).unwrap_err().to_string();
        assert!(error.contains("has no token"), "a begin token alone is no prompt: {error}");
    }
}
