//! Correct first: whether an arm's output is what it must be.

use specquant_core::{RunSpec, Speculation};
use specquant_engine::Output;
use specquant_report::{Check, control};

use super::bench::Pass;

/// Checks one arm of a round, given all passes of the round and those of the first round, if this is a later one. The arm
/// after the cells repeats the control.
pub(crate) fn check(cells: &[RunSpec], arm: usize, passes: &[Pass], first: Option<&[Pass]>) -> Check {
    let repeated = control(cells);
    if arm == cells.len() {
        return compare(&passes[arm].outputs, &passes[repeated].outputs).unwrap_or(Check::SameBits);
    }
    let (cell, first) = (&cells[arm], first.map(|passes| &passes[arm]));
    let control = cells.iter().position(|other| *other == cell.plain()).map(|at| &passes[at]);
    let (reference, right) = match (cell.speculation, cell.sampling.is_greedy()) {
        (Speculation::Off, _) => (first, Check::SameBits),
        (_, true) => (control, Check::SameBits),
        (_, false) => (first, Check::Sampled),
    };
    match reference {
        None if right == Check::Sampled => Check::Sampled,
        None => Check::Reference,
        Some(reference) => compare(&passes[arm].outputs, &reference.outputs).unwrap_or(right),
    }
}

/// The first difference between two sets of outputs, by request.
fn compare(outputs: &[Output], reference: &[Output]) -> Option<Check> {
    for (output, expected) in outputs.iter().zip(reference) {
        if output == expected {
            continue;
        }
        let same = output.tokens.iter().zip(&expected.tokens).take_while(|(a, b)| a == b).count();
        // Where ids agree throughout, only bits of logits or the reason differ.
        let token = if output.tokens == expected.tokens { 0 } else { same };
        return Some(Check::Differs { request: output.request, token });
    }
    let missing = outputs.len() != reference.len();
    missing.then(|| Check::Differs { request: outputs.len().min(reference.len()) as u64, token: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use specquant_core::Reason;

    fn output(request: u64, tokens: &[u32], digest: u64) -> Output {
        Output { request, tokens: tokens.to_vec(), text: String::new(), reason: Reason::Length, digest }
    }

    #[test]
    fn the_first_difference_is_found() {
        let reference = [output(0, &[1, 2, 3], 5), output(1, &[4, 5], 6)];
        let differs = |request, token| Some(Check::Differs { request, token });
        for (second, expected) in [
            (output(1, &[4, 5], 6), None),
            (output(1, &[4, 6], 6), differs(1, 1)),
            (output(1, &[4, 5], 7), differs(1, 0)),
            (output(1, &[4], 6), differs(1, 1)),
        ] {
            assert_eq!(compare(&[reference[0].clone(), second], &reference), expected);
        }
        assert_eq!(compare(&reference[..1], &reference), differs(1, 0));
    }
}
