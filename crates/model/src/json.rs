//! JSON as checkpoints hold it, read more strictly than a parser does by itself.
//!
//! A key that stands twice in an object is an error, since readers disagree on which one counts; a byte-order mark at the head
//! of a file is no text.

use std::collections::HashSet;
use std::fmt;

use anyhow::Result;
use serde::de::{self, Deserialize, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};

/// Reads a value.
///
/// # Errors
/// What is not JSON, has a key twice in one object, or is not of the wanted form.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let bytes = unmarked(bytes);
    serde_json::from_slice::<Unique>(bytes)?;
    Ok(serde_json::from_slice(bytes)?)
}

/// The contents of a file without the byte-order mark at its head, if it has one.
pub(crate) fn unmarked(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes)
}

/// Any value whose objects have every key once; nothing of it is kept.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Unique, D::Error> {
        deserializer.deserialize_any(Unique)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Unique;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique, A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            map.next_value::<Unique>()?;
            if keys.contains(&key) {
                return Err(de::Error::custom(format!("duplicate key `{key}`")));
            }
            keys.insert(key);
        }
        Ok(Unique)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Unique, A::Error> {
        while list.next_element::<Unique>()?.is_some() {}
        Ok(Unique)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_str<E>(self, _: &str) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_unit<E>(self) -> Result<Unique, E> {
        Ok(Unique)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn check(text: &str, expected: Result<&str, &str>) {
        match (parse::<Value>(text.as_bytes()), expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got.to_string(), expected),
            (Err(got), Err(expected)) => assert!(format!("{got:#}").contains(expected), "{text}: {got:#}"),
            (got, expected) => panic!("{text}: {got:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn keys_are_unique_and_a_mark_is_no_text() {
        check(r#"{"a":[1,-2,3.5,true,null,"x"],"b":{"a":{}}}"#, Ok(r#"{"a":[1,-2,3.5,true,null,"x"],"b":{"a":{}}}"#));
        check("\u{feff}{}", Ok("{}"));
        check(r#"{"a":1,"a":1}"#, Err("duplicate key `a` at line 1"));
        check(r#"[{"b":{"c":1,"d":2,"c":3}}]"#, Err("duplicate key `c`"));
        check("{", Err("EOF"));
        check(&"[".repeat(100_000), Err("recursion limit"));
    }
}
