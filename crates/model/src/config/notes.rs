//! What a configuration leaves open or says twice, and how it was read.

use anyhow::Result;

use super::fields::Fields;
use super::rope;

/// Sentences for whoever looks at a model, or at numbers made with it; none for a plain configuration.
pub(super) fn notes(fields: &Fields) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    if rope::given_theta(fields)?.is_none() {
        notes.push(format!("config.json gives no rope_theta: {} is the default of Llama models", rope::DEFAULT_THETA));
    }
    if let (Some(dtype), Some(torch)) = (fields.text("dtype")?, fields.text("torch_dtype")?)
        && dtype != torch
    {
        notes.push(format!("config.json says dtype {dtype} and torch_dtype {torch}: what the files hold decides"));
    }
    if fields.get("sliding_window").is_some() {
        notes.push("config.json names a sliding_window that is not in use: all layers see the whole context".into());
    }
    Ok(notes)
}
