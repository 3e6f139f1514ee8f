//! Requests through an engine, each submitted when it is due.

use anyhow::Result;
use specquant_core::Request;

use crate::{Engine, Output};

/// Runs `requests`, given in order of arrival, to their end and returns the outputs by request number. `None` if
/// `interrupted` became true first. Rejected requests have no output; the events tell why.
pub fn drive(
    engine: &mut Engine<'_>,
    requests: Vec<Request>,
    interrupted: &dyn Fn() -> bool,
) -> Result<Option<Vec<Output>>> {
    let mut due = requests.into_iter().peekable();
    let mut outputs = Vec::new();
    loop {
        if interrupted() {
            return Ok(None);
        }
        let now = engine.now();
        while let Some(request) = due.next_if(|request| request.arrival <= now) {
            engine.submit(request);
        }
        if !engine.is_idle() {
            outputs.extend(engine.step()?);
        } else if let Some(next) = due.peek() {
            engine.wait_until(next.arrival);
        } else {
            outputs.sort_by_key(|output| output.request);
            return Ok(Some(outputs));
        }
    }
}
