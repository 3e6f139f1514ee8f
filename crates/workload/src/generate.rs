//! Requests from prompts.
//!
//! Request i is prompt i, arrives at time 0, and has at least one prompt token and room for at least one more.

use anyhow::{Context, Result, ensure};
use specquant_core::{Request, RunSpec, Text};

use crate::prompts::Prompt;

/// One request for each prompt, for a model with room for `context` tokens. All have the spec's seed: the number of a
/// request is part of what its random numbers are drawn from.
pub fn generate(spec: &RunSpec, prompts: &[Prompt], text: &dyn Text, context: usize) -> Result<Vec<Request>> {
    let requests = (0..).zip(prompts).map(|(id, prompt)| {
        Ok(Request {
            id,
            arrival: 0,
            prompt: tokens(prompt, text, context)?,
            max_new_tokens: spec.workload.max_new_tokens,
            ignore_eos: spec.workload.ignore_eos,
            stop: spec.workload.stop.clone(),
            sampling: spec.sampling,
            seed: spec.seed,
        })
    });
    requests.collect()
}

fn tokens(prompt: &Prompt, text: &dyn Text, context: usize) -> Result<Vec<u32>> {
    let id = &prompt.id;
    let ids = text.encode(&prompt.text).with_context(|| format!("prompt `{id}`"))?;
    ensure!(!ids.is_empty(), "prompt `{id}` has no token: give it a text or remove it");
    ensure!(
        ids.len() < context,
        "prompt `{id}` has {} tokens and the model's context is {context}: shorten it to {} tokens, or use a model with a \
         longer context",
        ids.len(),
        context.saturating_sub(1)
    );
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use specquant_core::{Sampling, TextState, Workload};

    /// Every byte is a token; a `?` cannot be encoded.
    struct Bytes;

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
        match (generate(&spec(), &prompts, &Bytes, context), expected) {
            (Ok(got), Ok(expected)) => {
                assert_eq!(got.iter().map(|request| request.prompt.as_slice()).collect::<Vec<_>>(), expected);
                assert!((0..).zip(&got).all(|(id, request)| request.id == id));
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
        assert_eq!(generate(&spec(), &[prompt], &Bytes, 8).unwrap(), [expected]);
    }
}
