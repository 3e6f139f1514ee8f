//! Whether a stored round can have been measured: what must hold of every log, whoever wrote or changed it.
//!
//! Times are in order, every planned request is there once, counts agree with each other, and no sum can wrap.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail, ensure};
use serde_json::Value;
use specquant_core::RunSpec;
use specquant_metrics::{Acceptance, Outcome, Timeline};

use crate::round::{ArmPass, Round};
use crate::run::Run;

/// No count or time of a round is larger: 13 days in nanoseconds. The sum of all rounds that a run can have fits into 64 bits.
const MOST: u64 = 1 << 50;

/// Says which number of a round is too large to be summed, by its place.
pub(crate) fn bounded(round: &Value) -> Result<()> {
    fn walk(value: &Value, place: &mut String) -> Result<()> {
        let length = place.len();
        match value {
            Value::Number(number) => {
                let wrong = number.as_u64().is_some_and(|n| n > MOST) || number.as_i64().is_some_and(i64::is_negative);
                ensure!(!wrong, "{place} is {number}: a count or time of a round lies in 0..={MOST}");
            }
            Value::Array(list) => {
                for (at, value) in list.iter().enumerate() {
                    place.push_str(&format!("[{at}]"));
                    walk(value, place)?;
                    place.truncate(length);
                }
            }
            Value::Object(fields) => {
                for (key, value) in fields {
                    place.push_str(&format!("{}{key}", if length > 0 { "." } else { "" }));
                    walk(value, place)?;
                    place.truncate(length);
                }
            }
            _ => {}
        }
        Ok(())
    }
    walk(round, &mut String::new())
}

/// Says which request of a round has more tokens, or which draft is longer, than was asked for, so that it could not even be
/// counted.
pub(crate) fn possible(round: &Round, run: &Run) -> Result<()> {
    for (arm, pass) in round.passes.iter().enumerate() {
        let cell = run.cell_of(arm);
        let (most, longest) = (cell.workload.max_new_tokens, cell.speculation.depth());
        for (at, counts) in pass.pass.acceptance.by_length.iter().enumerate() {
            ensure!(
                (1..=longest).contains(&counts.length),
                "passes[{arm}].pass.acceptance.by_length[{at}].length is {}: drafts of {} have at most {longest} tokens",
                counts.length,
                cell.speculation
            );
        }
        for (at, timeline) in pass.pass.timelines.iter().enumerate() {
            let tokens = timeline.emissions.iter().fold(0usize, |sum, emission| sum.saturating_add(emission.n));
            ensure!(tokens <= most, "passes[{arm}].pass.timelines[{at}].emissions: {tokens} tokens of at most {most}");
        }
    }
    Ok(())
}

/// Says what of a round cannot have been measured.
pub(crate) fn sound(round: &Round, run: &Run) -> Result<()> {
    for (arm, pass) in round.passes.iter().enumerate() {
        let cell = run.cell_of(arm);
        let place = format!("passes[{arm}]");
        complete(pass, cell, run, &place)?;
        accepted(&pass.pass.acceptance, &place)?;
        for (at, timeline) in pass.pass.timelines.iter().enumerate() {
            let place = format!("{place}.pass.timelines[{at}]");
            timed(timeline, &place)?;
            counted(timeline, &place)?;
        }
        digested(pass, &place)?;
    }
    Ok(())
}

/// Every request that was planned is there once.
fn complete(arm: &ArmPass, cell: &RunSpec, run: &Run, place: &str) -> Result<()> {
    let found: BTreeSet<u64> = arm.pass.timelines.iter().map(|timeline| timeline.request).collect();
    let n = arm.pass.timelines.len();
    let of_file = if cell.workload == run.cells[0].workload { run.prompts } else { cell.workload.num_prompts };
    // Where all of a file is taken, or lines of it are skipped, the number is not known beforehand.
    let planned = if cell.workload.skip_invalid || of_file == 0 { found.len() } else { of_file };
    ensure!(
        n == planned && found.len() == n,
        "{place}.pass.timelines: {n} requests with {} numbers, {planned} were planned",
        found.len()
    );
    Ok(())
}

/// The digest of a request is of as many tokens as it got.
fn digested(arm: &ArmPass, place: &str) -> Result<()> {
    let timelines = &arm.pass.timelines;
    let got: BTreeMap<u64, usize> = timelines.iter().map(|timeline| (timeline.request, timeline.tokens())).collect();
    for (at, digest) in arm.digests.iter().enumerate() {
        let tokens = got.get(&digest.request);
        ensure!(
            tokens == Some(&digest.tokens),
            "{place}.digests[{at}].tokens is {}, request {} got {tokens:?}",
            digest.tokens,
            digest.request
        );
    }
    Ok(())
}

/// No more was accepted than drafted.
fn accepted(acceptance: &Acceptance, place: &str) -> Result<()> {
    for (at, counts) in acceptance.by_length.iter().enumerate() {
        let place = format!("{place}.pass.acceptance.by_length[{at}]");
        ensure!(
            counts.accepted.len() <= counts.length + 1,
            "{place}.accepted: {} tokens accepted of {} drafted",
            counts.accepted.len().saturating_sub(1),
            counts.length
        );
        ensure!(
            counts.rejected <= counts.steps(),
            "{place}.rejected is {}, of {} steps",
            counts.rejected,
            counts.steps()
        );
    }
    Ok(())
}

/// Arrival, admission, emissions and end follow each other.
fn timed(timeline: &Timeline, place: &str) -> Result<()> {
    let emissions =
        timeline.emissions.iter().enumerate().map(|(at, emission)| (format!("emissions[{at}].at_ns"), emission.at_ns));
    let admitted = timeline.admitted_ns.map(|at| ("admitted_ns".to_string(), at));
    let end = timeline.end.as_ref().map(|end| ("end.at_ns".to_string(), end.at_ns));
    let mut before = ("arrival_ns".to_string(), timeline.arrival_ns);
    for now in admitted.into_iter().chain(emissions).chain(end) {
        ensure!(before.1 <= now.1, "{place}.{} is {}, after {} {}", before.0, before.1, now.0, now.1);
        before = now;
    }
    Ok(())
}

/// Emissions are of at least one token, and of as many as the request ended with.
fn counted(timeline: &Timeline, place: &str) -> Result<()> {
    for (at, emission) in timeline.emissions.iter().enumerate() {
        ensure!(emission.n >= 1, "{place}.emissions[{at}].n is 0: an emission has at least one token");
    }
    let tokens = timeline.tokens();
    match timeline.end.as_ref().map(|end| &end.outcome) {
        Some(Outcome::Finished { tokens: reported, .. }) if *reported != tokens => {
            bail!("{place}.end.outcome.finished.tokens is {reported}, its emissions have {tokens}")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use specquant_metrics::{Emission, End};

    use super::*;
    use crate::sample::{log, run};

    /// What is said of a sound round after a change to its second arm, which drafts.
    fn check(change: impl FnOnce(&mut ArmPass), expected: &str) {
        let mut round = log(1, 15).rounds.remove(0);
        let drafting = |arm: &ArmPass| arm.pass.acceptance.drafting_steps() > 0;
        let arm = round.passes.iter().position(drafting).unwrap();
        change(&mut round.passes[arm]);
        let said = sound(&round, &run()).err().map_or(String::new(), |error| format!("{error:#}"));
        let expected = expected.replace("ARM", &format!("passes[{arm}]"));
        assert!(
            if expected.is_empty() { said.is_empty() } else { said.contains(&expected) },
            "{said} instead of {expected}"
        );
    }

    fn of(change: impl FnOnce(&mut Timeline), expected: &str) {
        check(|arm| change(&mut arm.pass.timelines[0]), expected);
    }

    #[test]
    fn what_cannot_have_been_measured_is_named_by_its_field() {
        check(|_| (), "");
        of(|timeline| timeline.arrival_ns = 10_000_000_000, "ARM.pass.timelines[0].arrival_ns is 10000000000, after");
        of(|timeline| timeline.admitted_ns = Some(1 << 40), "admitted_ns is 1099511627776, after emissions[0].at_ns");
        of(|timeline| timeline.emissions.reverse(), "emissions[0].at_ns is");
        of(|timeline| timeline.end = Some(End { at_ns: 0, ..timeline.end.clone().unwrap() }), "after end.at_ns 0");
        of(|timeline| timeline.emissions[1].n = 0, "emissions[1].n is 0");
        of(
            |timeline| timeline.emissions.push(Emission { n: 1, ..*timeline.emissions.last().unwrap() }),
            "end.outcome.finished.tokens is",
        );
        check(|arm| arm.pass.timelines.clear(), "0 requests with 0 numbers, 1 were planned");
        check(|arm| arm.digests[0].tokens += 1, "ARM.digests[0].tokens is");
        check(
            |arm| arm.pass.acceptance.by_length[0].accepted.push(1),
            "ARM.pass.acceptance.by_length[0].accepted: 5 tokens accepted of 4 drafted",
        );
        check(|arm| arm.pass.acceptance.by_length[0].rejected = 1 << 40, "rejected is 1099511627776, of");
    }

    #[test]
    fn a_request_has_no_more_tokens_than_it_may() {
        let mut round = log(1, 15).rounds.remove(0);
        possible(&round, &run()).unwrap();
        round.passes[2].pass.timelines[0].emissions[0].n = 65;
        let said = possible(&round, &run()).unwrap_err().to_string();
        assert!(
            said.starts_with("passes[2].pass.timelines[0].emissions: ") && said.ends_with("tokens of at most 64"),
            "{said}"
        );
    }

    #[test]
    fn no_number_is_so_large_that_a_sum_could_wrap() {
        let said = |text: &str| bounded(&serde_json::from_str(text).unwrap()).err().map(|error| error.to_string());
        assert_eq!(said(r#"{"a":[1,{"b":1125899906842624}],"c":0.5,"d":"x"}"#), None);
        let place = |text: &str, expected: &str| assert!(said(text).unwrap().starts_with(expected), "{text}");
        place(r#"{"a":[1,{"b":1125899906842625}]}"#, "a[1].b is 1125899906842625");
        place(r#"{"a":{"b":-1}}"#, "a.b is -1");
    }
}
