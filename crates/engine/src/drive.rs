//! Requests through an engine to their end.
//!
//! A request's latency counts from its arrival: the time on its schedule, or, in a closed loop, the moment when its user
//! had no other request left.

use anyhow::Result;
use specquant_core::Request;

use crate::{Engine, Output};

/// When requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// At their own time, which does not fall from one request to the next.
    Scheduled,
    /// In a closed loop: each of so many users sends the next request when the last has ended. Their own times are
    /// overwritten.
    Closed {
        /// Users, at least 1.
        users: usize,
    },
}

/// Runs `requests` to their end and returns the outputs by request number. `None` if `interrupted` became true first.
/// Rejected requests have no output; the events tell why.
pub fn drive(
    engine: &mut Engine<'_>,
    requests: Vec<Request>,
    arrivals: Arrivals,
    interrupted: &dyn Fn() -> bool,
) -> Result<Option<Vec<Output>>> {
    let mut due = requests.into_iter().peekable();
    let mut outputs = Vec::new();
    loop {
        if interrupted() {
            return Ok(None);
        }
        let now = engine.now();
        match arrivals {
            Arrivals::Scheduled => {
                while let Some(request) = due.next_if(|request| request.arrival <= now) {
                    engine.submit(request);
                }
            }
            Arrivals::Closed { users } => {
                while engine.in_flight() < users
                    && let Some(request) = due.next()
                {
                    engine.submit(Request { arrival: now, ..request });
                }
            }
        }
        if !engine.is_idle() {
            outputs.extend(engine.step()?);
            if let Some(end) = engine.window_end() {
                let next = due.peek().filter(|_| arrivals == Arrivals::Scheduled).map_or(end, |next| next.arrival);
                engine.wait_until(end.min(next));
            }
        } else if let Some(next) = due.peek() {
            engine.wait_until(next.arrival);
        } else {
            outputs.sort_by_key(|output| output.request);
            return Ok(Some(outputs));
        }
    }
}
