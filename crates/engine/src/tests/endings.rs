//! How requests end: end-of-text, stop strings, the asked-for length, and the model's context.
//!
//! Only tokens of the output count, wherever in an accepted draft the end falls.

use specquant_core::{EventKind, Reason, Request};

use super::rig::{ALLOCATORS, DRAFT, Ran, Rig, TARGET, ask, asks};
use crate::Output;
use crate::fake::Rule;

const PROMPT: [u32; 2] = [2, 3];
const K: usize = 4;

/// A model that continues `PROMPT` with these tokens, then with others.
fn script(tokens: &[u32]) -> Rule {
    Rule::Script([&PROMPT, tokens, &[5; 200]].concat())
}

fn output(ran: &Ran) -> (&[u32], Reason, &str) {
    let Output { tokens, reason, text, .. } = &ran.outputs[0];
    let Some(EventKind::Finished { tokens: n, reason: logged, .. }) = ran
        .events
        .iter()
        .rev()
        .find_map(|event| Some(event.kind.clone()).filter(|kind| matches!(kind, EventKind::Finished { .. })))
    else {
        panic!("nothing finished")
    };
    let emitted: usize = ran.emissions(0).iter().map(|emission| emission.0).sum();
    assert_eq!((n, logged, emitted), (tokens.len(), *reason, tokens.len()), "the events count the output");
    (tokens, *reason, text)
}

#[test]
fn an_end_of_text_token_ends_the_output_wherever_it_stands_in_a_draft() {
    // Place in the draft of four; 4 is the bonus. The first token of all comes from the prefill.
    for place in 0..=K {
        let mut tokens = [9, 10, 11, 12, 13, 14];
        tokens[1 + place] = 0;
        let rig = Rig { target: script(&tokens), draft: Some(script(&tokens)), ..Rig::new(K) };
        let request = Request { ignore_eos: false, ..ask(0, &PROMPT, 30) };
        let ran = rig.run(std::slice::from_ref(&request)).unwrap();
        assert_eq!(output(&ran).0, &tokens[..place + 2]);
        assert_eq!(output(&ran).1, Reason::Eos);
        assert_eq!(ran.emissions(0), [(1, 0, 0), (place + 1, K, (place + 1).min(K))]);
        assert_eq!(ran.outputs, rig.plain().run(&[request]).unwrap().outputs);
        // The same token is one like any other where the request says so.
        let ran = rig.run(&[ask(0, &PROMPT, 30)]).unwrap();
        assert_eq!((output(&ran).0.len(), output(&ran).1), (30, Reason::Length));
        assert_eq!(output(&ran).0[..6], tokens);
    }
}

#[test]
fn an_end_of_text_token_may_replace_a_rejected_draft_or_come_at_once() {
    let request = Request { ignore_eos: false, ..ask(0, &PROMPT, 30) };
    // What the two models say, the emissions, and how many of them have a rejection among their output.
    for (target, draft, emissions, rejections) in [
        (&[9, 10, 0][..], &[9, 10, 11, 12][..], &[(1, 0, 0), (2, K, 1)][..], 1),
        (&[9, 0], &[9, 7, 8], &[(1, 0, 0), (1, K, 0)], 1),
        (&[0], &[0], &[(1, 0, 0)], 0),
        // The draft goes wrong only behind the end, where nothing counts.
        (&[9, 10, 0], &[9, 10, 0, 7], &[(1, 0, 0), (2, K, 2)], 0),
    ] {
        let rig = Rig { target: script(target), draft: Some(script(draft)), ..Rig::new(K) };
        let ran = rig.run(std::slice::from_ref(&request)).unwrap();
        assert_eq!((output(&ran).0, output(&ran).1), (target, Reason::Eos));
        assert_eq!(ran.emissions(0), emissions);
        let rejected = ran.count(|kind| matches!(kind, EventKind::Tokens { rejected: true, .. }));
        assert_eq!(rejected, rejections, "a rejection counts if its replacement is output");
    }
}

#[test]
fn a_stop_string_ends_the_output_before_any_later_limit() {
    // Letters: 10 is `j`, 11 is `k`, and so on; the prefill gives the first token.
    /// What the model says, the stop strings, the most tokens; the output, its text, and why it ends.
    type Row<'a> = (&'a [u32], &'a [&'a str], usize, &'a [u32], &'a str, Reason);
    let rows: [Row<'_>; 7] = [
        // The stop string comes before the cap in the same block of drafts.
        (&[10, 11, 26, 20, 21, 22], &["z"], 5, &[10, 11, 26], "jk", Reason::Stop),
        // It spans two drafted tokens.
        (&[10, 11, 12, 13, 14, 15], &["lm"], 20, &[10, 11, 12, 13], "jk", Reason::Stop),
        // It spans the end of one block and the beginning of the next.
        (&[10, 11, 12, 13, 14, 15, 16, 17], &["op"], 20, &[10, 11, 12, 13, 14, 15, 16], "jklmn", Reason::Stop),
        // The last token that is allowed completes it.
        (&[10, 11, 12, 13, 14, 15], &["n"], 5, &[10, 11, 12, 13, 14], "jklm", Reason::Stop),
        // It never comes, and the text that was held back is shown.
        (&[10, 11, 12, 13, 14, 15], &["nox"], 6, &[10, 11, 12, 13, 14, 15], "jklmno", Reason::Length),
        // The earliest of several counts.
        (&[10, 11, 12, 13, 14, 15], &["n", "kl"], 20, &[10, 11, 12], "j", Reason::Stop),
        (&[10, 11, 12, 13, 14, 15], &["j"], 20, &[10], "", Reason::Stop),
    ];
    for (tokens, stops, max, expected, text, reason) in rows {
        let stop = stops.iter().map(ToString::to_string).collect();
        let request = Request { stop, ..ask(0, &PROMPT, max) };
        let rig = Rig { target: script(tokens), draft: Some(script(tokens)), ..Rig::new(K) };
        for rig in [rig.plain(), Rig::clone(&rig), Rig { draft: Some(DRAFT), ..rig }] {
            assert_eq!(output(&rig.run(std::slice::from_ref(&request)).unwrap()), (expected, reason, text));
        }
    }
}

#[test]
fn an_end_of_text_token_is_no_text_and_the_held_text_is_shown() {
    let request = Request { ignore_eos: false, stop: vec!["kx".into()], ..ask(0, &PROMPT, 9) };
    let rig = Rig { target: script(&[10, 11, 0]), draft: Some(script(&[10, 11, 0])), ..Rig::new(K) };
    assert_eq!(output(&rig.run(&[request]).unwrap()), (&[10, 11, 0][..], Reason::Eos, "jk"));
}

#[test]
fn the_length_is_never_exceeded_and_drafts_are_cut_to_what_is_of_use() {
    for k in [2, 4, 8] {
        for max in 1..=10 {
            let ran = Rig { draft: Some(TARGET), ..Rig::new(k) }.run(&asks(1, max)).unwrap();
            assert_eq!((output(&ran).0.len(), output(&ran).1), (max, Reason::Length));
            let mut left = max;
            for (n, drafted, _) in ran.emissions(0) {
                assert!(drafted <= k.min(left - 1) && n <= drafted + 1, "{drafted} drafted with {left} to go");
                left -= n;
            }
        }
    }
}

/// Runs one prompt of `prompt` tokens into contexts of 64 and `draft_context` positions.
fn check_context(prompt: usize, draft_context: usize, max: usize, expected: (usize, Reason)) {
    for kv in ALLOCATORS {
        for draft in [TARGET, DRAFT] {
            let rig = Rig { draft: Some(draft), context: 64, draft_context, kv, ..Rig::new(K) };
            let request = ask(0, &vec![7; prompt], max);
            let ran = rig.run(std::slice::from_ref(&request)).unwrap();
            let got = (output(&ran).0.len(), output(&ran).1);
            assert_eq!(got, expected, "{kv}: prompt {prompt}, draft context {draft_context}, {max} tokens");
            assert_eq!(ran.outputs[0], rig.plain().alone(&request));
        }
    }
}

#[test]
fn the_context_ends_a_request_cleanly_and_a_shorter_draft_context_ends_only_the_drafts() {
    for draft_context in [64, 63, 60, 40, 8, 3, 1] {
        check_context(63, draft_context, 9, (1, Reason::Context));
        check_context(63, draft_context, 1, (1, Reason::Length));
        check_context(64 - K, draft_context, 99, (K, Reason::Context));
        check_context(62 - K, draft_context, 99, (K + 2, Reason::Context));
        check_context(64 - K, draft_context, K, (K, Reason::Length));
        check_context(5, draft_context, 99, (59, Reason::Context));
        check_context(5, draft_context, 20, (20, Reason::Length));
    }
}

#[test]
fn drafts_go_on_to_the_last_position_of_a_shorter_draft_context() {
    for context in 16..=22usize {
        let rig = Rig { draft: Some(TARGET), draft_context: context, ..Rig::new(K) };
        let ran = rig.run(&[ask(0, &[7; 5], 40)]).unwrap();
        let (mut len, mut skipped) = (6, 0);
        for (n, drafted, _) in &ran.emissions(0)[1..] {
            // A draft token needs its predecessors in the draft cache and no position of its own.
            assert_eq!(*drafted, K.min((context + 1).saturating_sub(len)).min(44 - len), "{len} of {context}");
            skipped += usize::from(*drafted == 0 && len < 44);
            len += n;
        }
        assert!(skipped > 10);
        assert_eq!(ran.count(|kind| matches!(kind, EventKind::DraftSkipped { .. })), skipped);
    }
}
