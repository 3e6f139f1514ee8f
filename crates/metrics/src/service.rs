//! What the service was worth: requests that kept their latency limits, and what tokens cost.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use specquant_core::Slo;

use crate::summary::Pass;
use crate::timeline::Timeline;

/// How many requests were served within their limits.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Goodput {
    /// Requests that met every limit.
    pub met: u64,
    /// Those / all requests. Aborted, failed, rejected and unfinished ones met none. `None` without requests.
    pub share: Option<f64>,
    /// Goodput: those / wall, per second. `None` where no time passed.
    pub requests_s: Option<f64>,
}

/// What output tokens cost in money, in the unit of the price.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Cost {
    /// Of 1,000 output tokens: price per hour x hours of wall x 1,000 / output tokens.
    pub per_1k_tokens: f64,
    /// Of 1,000,000 output tokens.
    pub per_1m_tokens: f64,
}

impl Goodput {
    /// The goodput of passes under limits.
    pub fn of<'a>(passes: impl IntoIterator<Item = &'a Pass>, slo: &Slo) -> Goodput {
        let (mut met, mut requests, mut wall_ns) = (0, 0, 0);
        for pass in passes {
            wall_ns += pass.wall_ns;
            requests += pass.timelines.len();
            met += pass.timelines.iter().filter(|timeline| meets(timeline, slo)).count();
        }
        Goodput {
            met: met as u64,
            share: (requests > 0).then(|| met as f64 / requests as f64),
            requests_s: (wall_ns > 0).then(|| met as f64 * 1e9 / wall_ns as f64),
        }
    }
}

/// Whether a request got a token and was finished within every limit. One without a second token has no time per token to
/// exceed.
fn meets(timeline: &Timeline, slo: &Slo) -> bool {
    let within = |ns: Option<f64>, limit: Option<f64>| match (ns, limit) {
        (Some(ns), Some(limit)) => ns / 1e6 <= limit,
        _ => true,
    };
    timeline.is_finished()
        && timeline.ttft_ns().is_some()
        && within(timeline.ttft_ns().map(|ns| ns as f64), slo.ttft_ms)
        && within(timeline.tpot_ns(), slo.tpot_ms)
        && within(timeline.e2e_ns().map(|ns| ns as f64), slo.e2e_ms)
}

impl Cost {
    /// The cost of `output_tokens` that took `wall_s` seconds on machines that cost `price_per_hour` together. `None`
    /// without tokens.
    pub fn of(price_per_hour: f64, wall_s: f64, output_tokens: u64) -> Option<Cost> {
        let per_token = price_per_hour * wall_s / 3600.0 / output_tokens as f64;
        (output_tokens > 0).then_some(Cost { per_1k_tokens: 1e3 * per_token, per_1m_tokens: 1e6 * per_token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::*;

    /// A request with TTFT 10, TPOT 20 and E2E 51 ms, one of a single token after 30 ms, one that has an end only, one
    /// rejected, one aborted after a token and one without an end; 100 ms in all.
    fn pass() -> Pass {
        Pass::of(&milliseconds(vec![
            arrived(0, 0),
            token(10, 0),
            token(30, 0),
            token(50, 0),
            finished(51, 0, 3),
            arrived(0, 1),
            token(30, 1),
            finished(30, 1, 1),
            arrived(0, 2),
            finished(5, 2, 0),
            arrived(0, 3),
            rejected(0, 3),
            arrived(0, 4),
            token(3, 4),
            aborted(4, 4),
            arrived(100, 5),
        ]))
    }

    fn check(slo: &str, met: u64) {
        let goodput = Goodput::of(&[pass()], &slo.parse().unwrap());
        let expected = Goodput { met, share: Some(met as f64 / 6.0), requests_s: Some(met as f64 / 0.1) };
        assert_eq!(goodput, expected, "{slo}");
        let twice = Goodput::of(&[pass(), pass()], &slo.parse().unwrap());
        assert_eq!(twice, Goodput { met: 2 * met, ..expected });
    }

    #[test]
    fn a_request_counts_if_it_keeps_every_limit_and_is_finished() {
        check("e2e:1000", 2);
        check("ttft:10", 1);
        check("ttft:9.9", 0);
        check("tpot:20", 2);
        check("tpot:19", 1);
        check("ttft:30,tpot:20,e2e:50", 1);
        check("e2e:4", 0);
        let none = Goodput::of(&[], &Slo::default());
        assert_eq!(none, Goodput { met: 0, share: None, requests_s: None });
    }

    #[test]
    fn tokens_cost_what_the_machine_costs_meanwhile() {
        // 3.60 an hour are 0.001 a second; 500 tokens in 2 seconds.
        let cost = Cost::of(3.6, 2.0, 500).unwrap();
        assert!((cost.per_1k_tokens - 0.004).abs() < 1e-12 && (cost.per_1m_tokens - 4.0).abs() < 1e-9, "{cost:?}");
        assert_eq!(Cost::of(3.6, 2.0, 0), None);
    }
}
