//! A span of time in a spec, as people write it: `45s`, `3m`, `1h 30m`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes the span in the same form.
pub(crate) fn serialize<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    span.map(|span| humantime::format_duration(span).to_string()).serialize(serializer)
}

/// Reads a span with its unit.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let remedy = "write a time with its unit in quotes, such as \"45s\" or \"3m\"";
    let value = toml::Value::deserialize(deserializer)?;
    let span = value.as_str().and_then(|text| humantime::parse_duration(text).ok());
    span.map(Some).ok_or_else(|| serde::de::Error::custom(format!("{value}: {remedy}")))
}
