//! Requests that warm a model up: of the lengths that will be measured, and of tokens that will not.
//!
//! Their text is no text, so that nothing that a cache may learn from them helps the measured ones.

use specquant_core::{Request, Rng, Use};

/// Different lengths that warm a model up.
const LENGTHS: usize = 3;

/// Requests with prompts as long as the shortest, the longest and those between among `requests`: as many as run at once
/// with `users` places, at least three, of random token ids below `vocab` and outside `eos`. They generate as many tokens as the measured ones may.
pub fn warm_up(requests: &[Request], users: usize, vocab: usize, eos: &[u32]) -> Vec<Request> {
    let mut by_length: Vec<&Request> = requests.iter().collect();
    by_length.sort_by_key(|request| request.prompt.len());
    let Some(last) = by_length.len().checked_sub(1) else { return Vec::new() };
    // More requests at once than are measured would warm up what is never run.
    let n = LENGTHS.max(users.min(requests.len()));
    let like = |i: usize| by_length[i * last / (n - 1)];
    let warm = |i: usize| {
        let (request, rng) = (like(i), Rng { seed: !like(i).seed, request: i as u64 });
        let token = |at| (rng.uniform(at, Use::Draft) * vocab as f64) as u32;
        let allowed = |id: u32| (0..vocab as u32).map(|next| (id + next) % vocab as u32).find(|id| !eos.contains(id));
        Request {
            id: i as u64,
            prompt: (0..request.prompt.len()).map(|at| allowed(token(at)).unwrap_or(0)).collect(),
            ignore_eos: true,
            stop: Vec::new(),
            ..request.clone()
        }
    };
    (0..n).map(warm).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use specquant_core::Sampling;

    fn request(length: usize) -> Request {
        Request {
            id: 0,
            arrival: 0,
            prompt: vec![1; length],
            max_new_tokens: 5,
            ignore_eos: false,
            stop: vec!["x".into()],
            sampling: Sampling::GREEDY,
            seed: 7,
        }
    }

    /// `expected` are the lengths of the warm-up's prompts.
    fn check(lengths: &[usize], users: usize, expected: &[usize]) {
        let requests: Vec<Request> = lengths.iter().map(|&length| request(length)).collect();
        let warm = warm_up(&requests, users, 8, &[2, 3]);
        assert_eq!(warm.iter().map(|request| request.prompt.len()).collect::<Vec<_>>(), expected);
        for warm in &warm {
            assert!(warm.prompt.iter().all(|id| *id < 8 && ![2, 3].contains(id)), "{:?}", warm.prompt);
            assert!(warm.ignore_eos && warm.stop.is_empty() && warm.max_new_tokens == 5);
        }
    }

    #[test]
    fn lengths_are_those_of_the_measured_requests() {
        check(&[], 1, &[]);
        check(&[4], 1, &[4, 4, 4]);
        check(&[9, 1, 5], 1, &[1, 5, 9]);
        check(&[9, 1, 5], 5, &[1, 5, 9]);
        check(&[1, 2, 3, 4, 5], 4, &[1, 2, 3, 5]);
        check(&(1..=100).collect::<Vec<_>>(), 2, &[1, 50, 100]);
    }

    #[test]
    fn prompts_are_unlike_each_other_and_the_measured_ones() {
        let warm = warm_up(&[request(40), request(40)], 1, 1000, &[]);
        assert!(warm[0].prompt != warm[1].prompt && warm[0].prompt != request(40).prompt);
    }
}
