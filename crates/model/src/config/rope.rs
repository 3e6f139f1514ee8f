//! The base of rotary embeddings, from the several places where configurations write it.
//!
//! transformers 5 writes `rope_parameters`; earlier versions a `rope_theta` beside an optional `rope_scaling`. Two places that
//! disagree are refused, since readers take one or the other.

use anyhow::Result;
use serde_json::Value;

use super::fields::Fields;

/// The base of Llama models that name none.
pub(super) const DEFAULT_THETA: f64 = 10_000.0;

/// The base, or the default.
pub(super) fn theta(fields: &Fields) -> Result<f64> {
    for object in ["rope_scaling", "rope_parameters"] {
        if let Some(rope) = fields.object(object)? {
            refuse_scaled(&rope)?;
        }
    }
    Ok(given_theta(fields)?.unwrap_or(DEFAULT_THETA))
}

/// The base that the configuration names.
///
/// # Errors
/// Where two places name different ones.
pub(super) fn given_theta(fields: &Fields) -> Result<Option<f64>> {
    let range = 1.0..=1e12;
    let mut found: Option<(f64, &str)> = fields.number("rope_theta", range.clone())?.map(|theta| (theta, "rope_theta"));
    for object in ["rope_scaling", "rope_parameters"] {
        let Some(rope) = fields.object(object)? else { continue };
        let Some(theta) = rope.number("rope_theta", range.clone())? else { continue };
        if let Some((other, place)) = found.filter(|(other, _)| *other != theta) {
            let remedy =
                format!("{place} is {other}; make them equal, or remove the one that the model was not trained with");
            return Err(rope.refuse("rope_theta", &Value::from(theta), &remedy));
        }
        found = Some((theta, object));
    }
    Ok(found.map(|(theta, _)| theta))
}

fn refuse_scaled(rope: &Fields) -> Result<()> {
    if let Some((layer, inner)) = rope.first_object() {
        let remedy = "rotary embeddings that differ from layer to layer cannot be run; only one for all layers can";
        return Err(rope.refuse(&layer, &inner, remedy));
    }
    let (kind, old) = (rope.text("rope_type")?, rope.text("type")?);
    if let (Some(kind), Some(old)) = (kind, old)
        && kind != old
    {
        let remedy = format!("type is {old:?}; remove the one that the model was not trained with");
        return Err(rope.refuse("rope_type", &Value::from(kind), &remedy));
    }
    match kind.or(old) {
        Some("default") => {}
        Some(other) => {
            let remedy = "scaled rotary embeddings cannot be run; use a checkpoint whose type is `default`";
            let key = if kind.is_some() { "rope_type" } else { "type" };
            return Err(rope.refuse(key, &Value::from(other), remedy));
        }
        None => {
            if let Some(factor) = rope.get("factor") {
                let remedy =
                    "a factor without a rope_type says nothing; write the type, such as linear, or remove the factor";
                return Err(rope.refuse("factor", factor, remedy));
            }
        }
    }
    if let Some(part) = rope.number("partial_rotary_factor", 0.0..=1.0)?.filter(|&part| part != 1.0) {
        let remedy = "only heads that turn whole can be run; must be 1 or absent";
        return Err(rope.refuse("partial_rotary_factor", &Value::from(part), remedy));
    }
    Ok(())
}
