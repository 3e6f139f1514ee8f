//! Typed reading of a JSON object, with errors that name the file, the field, the value and what to write instead.
//!
//! A field that is absent and one that is null are the same: Hugging Face configurations use both for "the default".

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

/// A JSON object and the name of the file it stands in.
pub(crate) struct Fields {
    file: String,
    map: Map<String, Value>,
}

impl Fields {
    /// Reads the object in `bytes`, the contents of `file`.
    pub(crate) fn parse(file: &str, bytes: &[u8]) -> Result<Fields> {
        let value: Value = crate::json::parse(bytes).with_context(|| format!("{file}: not valid JSON"))?;
        match value {
            Value::Object(map) => Ok(Fields { file: file.to_string(), map }),
            other => bail!("{file}: must hold a JSON object, found {}", kind(&other)),
        }
    }

    /// The value of a field, unless absent or null.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The object in a field, read like a file of its own.
    pub(crate) fn object(&self, key: &str) -> Result<Option<Fields>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields { file: format!("{}: {key}", self.file), map: map.clone() })),
            Some(other) => Err(self.refuse(key, other, "must be an object")),
        }
    }

    /// The first field that holds an object.
    pub(crate) fn first_object(&self) -> Option<(String, Value)> {
        self.map.iter().find(|(_, value)| value.is_object()).map(|(key, value)| (key.clone(), value.clone()))
    }

    /// A whole number in `range`, or `None`.
    pub(crate) fn whole(&self, key: &str, range: std::ops::RangeInclusive<usize>) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| range.contains(n)) {
            Some(n) => Ok(Some(n)),
            None => {
                let wanted = format!("must be a whole number in {}..={}", range.start(), range.end());
                Err(self.refuse(key, value, &wanted))
            }
        }
    }

    /// A number in `range`, or `None`.
    pub(crate) fn number(&self, key: &str, range: std::ops::RangeInclusive<f64>) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().filter(|n| range.contains(n)) {
            Some(n) => Ok(Some(n)),
            None => {
                let wanted = format!("must be a number in {:e}..={:e}", range.start(), range.end());
                Err(self.refuse(key, value, &wanted))
            }
        }
    }

    /// `true` or `false`, or `None`.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.refuse(key, value, "must be true or false"))
    }

    /// A text, or `None`.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.refuse(key, value, "must be a text"))
    }

    /// A token id or a list of them, each below `vocab`, or `None`.
    pub(crate) fn ids(&self, key: &str, vocab: usize) -> Result<Option<Vec<u32>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let listed = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let id = |value: &Value| value.as_u64().filter(|&id| id < vocab as u64).map(|id| id as u32);
        let ids: Option<Vec<u32>> = listed.iter().map(id).collect();
        let wanted = || format!("must be a token id below vocab_size {vocab}, a list of them, or null");
        ids.map(Some).ok_or_else(|| self.refuse(key, value, &wanted()))
    }

    /// The error for a field that is needed and absent.
    pub(crate) fn missing(&self, key: &str) -> anyhow::Error {
        anyhow::anyhow!("{}: {key} is missing; a Llama checkpoint has it", self.file)
    }

    /// The error for a value that cannot be used: what stands there, and what to write instead.
    pub(crate) fn refuse(&self, key: &str, value: &Value, remedy: &str) -> anyhow::Error {
        let mut shown = value.to_string();
        if shown.chars().count() > 80 {
            shown = shown.chars().take(80).chain("...".chars()).collect();
        }
        anyhow::anyhow!("{}: {key} is {shown}: {remedy}", self.file)
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
