//! `specquant metrics`: what every printed number is.

use anyhow::Result;
use specquant_metrics::{DEFINITIONS, DERIVED, Definition, Kind};

use crate::{Ended, show};

/// Prints the definitions.
pub(crate) fn metrics(json: bool) -> Result<Ended> {
    let all: Vec<&Definition> = DERIVED.iter().chain(DEFINITIONS).collect();
    if json {
        show(&serde_json::to_string_pretty(&all)?)?;
        return Ok(Ended::Done);
    }
    let line = |definition: &&Definition| {
        let kind = match definition.kind {
            Kind::Exact => "exact",
            Kind::Timed => "timed",
        };
        format!("{:<40} {kind} {:<8} {}", definition.id, definition.unit, definition.text)
    };
    show(&all.iter().map(line).collect::<Vec<_>>().join("\n"))?;
    Ok(Ended::Done)
}
