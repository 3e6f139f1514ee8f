//! Some of many prompts, so that what is measured on them stands for all.
//!
//! Each category keeps its share of the prompts by largest remainder, and within a category the chosen ones are
//! spread evenly over the file. Nothing is random, so a smaller run is the same run everywhere.

use anyhow::{Result, ensure};

use crate::prompts::Prompt;

/// `n` of the prompts, in their order; 0 takes all.
pub fn choose(prompts: Vec<Prompt>, n: usize) -> Result<Vec<Prompt>> {
    let all = prompts.len();
    ensure!(n <= all, "num_prompts {n}: there are only {all}; ask for at most {all}, or 0 for all");
    if n == 0 || n == all {
        return Ok(prompts);
    }
    let categories = categories(&prompts);
    let sizes: Vec<usize> = categories.iter().map(Vec::len).collect();
    let mut chosen = vec![false; all];
    for (members, quota) in categories.iter().zip(quotas(&sizes, n)) {
        for pick in 0..quota {
            // The middle of each of `quota` equal stretches.
            chosen[members[(2 * pick + 1) * members.len() / (2 * quota)]] = true;
        }
    }
    Ok(prompts.into_iter().zip(chosen).filter_map(|(prompt, chosen)| chosen.then_some(prompt)).collect())
}

/// Where the prompts of each category stand, categories in the order of their first prompt.
fn categories(prompts: &[Prompt]) -> Vec<Vec<usize>> {
    let mut found: Vec<(&Option<String>, Vec<usize>)> = Vec::new();
    for (at, prompt) in prompts.iter().enumerate() {
        match found.iter_mut().find(|(category, _)| *category == &prompt.category) {
            Some((_, members)) => members.push(at),
            None => found.push((&prompt.category, vec![at])),
        }
    }
    found.into_iter().map(|(_, members)| members).collect()
}

/// `n` places shared in proportion to `sizes`; what rounding down leaves goes to the largest remainders, the first
/// category first where they are equal. No quota is above its size, as `n` is below their sum.
fn quotas(sizes: &[usize], n: usize) -> Vec<usize> {
    let all: usize = sizes.iter().sum();
    let mut quotas: Vec<usize> = sizes.iter().map(|size| size * n / all).collect();
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&category| std::cmp::Reverse(sizes[category] * n % all));
    let left = n - quotas.iter().sum::<usize>();
    for &category in &order[..left] {
        quotas[category] += 1;
    }
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prompts are letters: their category, `-` for none. The ids that are chosen are their places.
    fn check(categories: &str, n: usize, expected: &[usize]) {
        let prompts = categories.chars().enumerate().map(|(at, letter)| Prompt {
            id: at.to_string(),
            category: (letter != '-').then(|| letter.to_string()),
            text: String::new(),
        });
        let chosen = choose(prompts.collect(), n).unwrap();
        let got: Vec<usize> = chosen.iter().map(|prompt| prompt.id.parse().unwrap()).collect();
        assert_eq!(got, expected, "{n} of {categories}");
    }

    #[test]
    fn the_chosen_are_spread_over_categories_and_within_them() {
        check("aaaa", 0, &[0, 1, 2, 3]);
        check("aaaa", 4, &[0, 1, 2, 3]);
        check("aaaa", 1, &[2]);
        check("aaaa", 2, &[1, 3]);
        check("aaaaaaaaa", 3, &[1, 4, 7]);
        check("aaaabb", 3, &[1, 3, 5]);
        check("ababaa", 3, &[2, 3, 5]);
        check("--aa", 2, &[1, 3]);
        // One place goes to the larger remainder, and to the first of equal ones.
        check("aabbb", 1, &[3]);
        check("aabb", 1, &[1]);
        check("abc", 2, &[0, 1]);
        check("", 0, &[]);
    }

    #[test]
    fn every_number_of_prompts_can_be_chosen_and_shares_are_right_to_one() {
        let sizes = [36, 24, 16, 20, 1];
        for n in 0..sizes.iter().sum() {
            let quotas = quotas(&sizes, n);
            assert_eq!(quotas.iter().sum::<usize>(), n);
            for (quota, size) in quotas.iter().zip(sizes) {
                assert!(*quota <= size && quota.abs_diff(size * n / 97) <= 1, "{n}: {quotas:?}");
            }
            let letters: String = "abcde".chars().zip(sizes).map(|(c, size)| c.to_string().repeat(size)).collect();
            let prompts =
                letters.chars().map(|c| Prompt { id: String::new(), category: Some(c.into()), text: String::new() });
            assert_eq!(choose(prompts.collect(), n).unwrap().len(), if n == 0 { 97 } else { n });
        }
    }

    #[test]
    fn more_than_there_are_is_refused() {
        let error = choose(Vec::new(), 1).unwrap_err().to_string();
        assert_eq!(error, "num_prompts 1: there are only 0; ask for at most 0, or 0 for all");
    }
}
