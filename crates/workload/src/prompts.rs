//! Prompts from JSONL: one object on each line, with `prompt` and, if wanted, `id` and `category`.
//!
//! Every prompt has an id that an error or a report can name, and every error names the place and what to write there.

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Map, Value};

use crate::dataset::unmarked;

/// A text to be continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// What the file calls it, or `line N`.
    pub id: String,
    /// What kind of text it is, if the file says so.
    pub category: Option<String>,
    /// The text.
    pub text: String,
}

/// The prompts of a file, and the lines that hold none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The prompts, in order.
    pub prompts: Vec<Prompt>,
    /// What is wrong with each line that was skipped.
    pub skipped: Vec<String>,
}

/// The prompts in `content`, which `name` names in errors. Blank lines and unknown fields are skipped, and lines that hold no
/// prompt if `skip` says so.
pub fn parse(name: &str, content: &[u8], skip: bool) -> Result<Parsed> {
    let content = unmarked(name, content)?;
    let mut parsed = Parsed::default();
    for (number, line) in (1..).zip(content.split(|&byte| byte == b'\n')) {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match prompt(number, line).with_context(|| format!("{name} line {number}")) {
            Ok(prompt) => parsed.prompts.push(prompt),
            Err(error) if skip => parsed.skipped.push(format!("{error:#}")),
            Err(error) => return Err(error),
        }
    }
    ensure!(!parsed.prompts.is_empty(), "{name} holds no prompt: write {EXAMPLE} on each line");
    Ok(parsed)
}

const EXAMPLE: &str = r#"{"prompt": "Some text"}"#;

fn prompt(number: usize, line: &[u8]) -> Result<Prompt> {
    let text = std::str::from_utf8(line)
        .map_err(|error| anyhow!("byte {} is not UTF-8: save the file in UTF-8", error.valid_up_to() + 1))?;
    let value: Value = serde_json::from_str(text).map_err(|error| {
        // The line that the parser names is always the first of what it was given.
        let (said, column) = (error.to_string(), error.column());
        let said = said.split(" at line ").next().unwrap_or_default().to_string();
        anyhow!("byte {column}: {said}: write one object such as {EXAMPLE}")
    })?;
    let Value::Object(fields) = &value else {
        bail!("{} where an object belongs: write {EXAMPLE}", kind(&value));
    };
    let Some(text) = fields.get("prompt") else {
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        let found = if names.is_empty() { "no field".into() } else { format!("only `{}`", names.join("`, `")) };
        bail!("field `prompt` is missing, there is {found}: write {EXAMPLE}");
    };
    let Value::String(text) = text else {
        bail!("field `prompt` is {} where a text belongs: write {EXAMPLE}", kind(text));
    };
    ensure!(!text.is_empty(), "field `prompt` is empty: give it a text or remove the line");
    let id = name(fields, "id")?.unwrap_or_else(|| format!("line {number}"));
    Ok(Prompt { id, category: name(fields, "category")?, text: text.clone() })
}

/// A field that may be absent. Numbers are taken too, as many data sets number their prompts.
fn name(fields: &Map<String, Value>, field: &str) -> Result<Option<String>> {
    match fields.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(other) => bail!("field `{field}` is {} where a text belongs: write a text or leave it out", kind(other)),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prompts read `id/category/text`, with `-` for no category.
    fn check(content: &str, expected: Result<&[&str], &str>) {
        let show = |p: &Prompt| format!("{}/{}/{}", p.id, p.category.as_deref().unwrap_or("-"), p.text);
        let got = parse("p.jsonl", content.as_bytes(), false)
            .map(|parsed| parsed.prompts.iter().map(show).collect::<Vec<_>>());
        match (got, expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{content:?}"),
            (Err(got), Err(expected)) => assert!(format!("{got:#}").contains(expected), "{content:?}: {got:#}"),
            (got, expected) => panic!("{content:?}: {got:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn every_line_is_a_prompt() {
        check(r#"{"id": "a", "category": "code", "prompt": "fn"}"#, Ok(&["a/code/fn"]));
        check(r#"{"prompt": "fn", "turns": [1], "score": 2.5}"#, Ok(&["line 1/-/fn"]));
        check(r#"{"id": 81, "category": null, "prompt": "fn"}"#, Ok(&["81/-/fn"]));
        check("{\"prompt\": \"a\\nb\"}\n\n  \t\n{\"prompt\": \"c\"}", Ok(&["line 1/-/a\nb", "line 4/-/c"]));
        check("\u{feff}{\"prompt\": \"a\"}\r\n\r\n{\"prompt\": \"b\"}\r\n", Ok(&["line 1/-/a", "line 3/-/b"]));
        check(r#"{"prompt": "é \ud83e\udd80 \u0000 "}"#, Ok(&["line 1/-/é 🦀 \0 "]));
    }

    #[test]
    fn what_is_no_prompt_is_named_with_its_line_and_remedy() {
        check("", Err(r#"p.jsonl holds no prompt: write {"prompt": "Some text"} on each line"#));
        check("\u{feff}", Err("p.jsonl holds no prompt"));
        check("\n  \r\n\t\n", Err("p.jsonl holds no prompt"));
        check(
            "Some text",
            Err(r#"p.jsonl line 1: byte 1: expected value: write one object such as {"prompt": "Some text"}"#),
        );
        check("{\"prompt\": \"a\"}\n{\"prompt\": ", Err("p.jsonl line 2: byte 11: EOF"));
        check(r#"{"prompt": "a"} {"prompt": "b"}"#, Err("p.jsonl line 1: byte 17: trailing characters"));
        check(r#"{"prompt": ""}"#, Err("p.jsonl line 1: field `prompt` is empty"));
        check(
            "{\"prompt\": \"a\"}\n{\"prompt\": \"\\ud83e\"}",
            Err("p.jsonl line 2: byte 19: unexpected end of hex escape"),
        );
        check("[", Err("p.jsonl line 1: byte 1: EOF"));
        check("[\"a\"]", Err("p.jsonl line 1: a list where an object belongs: write {"));
        check("\"a\"", Err("p.jsonl line 1: a text where an object belongs"));
        check("\n{}", Err("p.jsonl line 2: field `prompt` is missing, there is no field: write {"));
        check(r#"{"text": "a", "id": "b"}"#, Err("field `prompt` is missing, there is only `id`, `text`"));
        check(r#"{"Prompt": "a"}"#, Err("field `prompt` is missing, there is only `Prompt`"));
        check(r#"{"prompt": 3}"#, Err("line 1: field `prompt` is a number where a text belongs: write {"));
        check(r#"{"prompt": null}"#, Err("field `prompt` is null where a text belongs"));
        check(r#"{"prompt": ["a"]}"#, Err("field `prompt` is a list where a text belongs"));
        check(r#"{"prompt": "a", "id": {}}"#, Err("field `id` is an object where a text belongs"));
        check(r#"{"prompt": "a", "category": true}"#, Err("field `category` is a boolean where a text belongs"));
    }

    #[test]
    fn lines_that_hold_no_prompt_are_skipped_if_that_is_asked_for() {
        let content = b"{\"prompt\": \"a\"}\n{\"prompt\": \"\xe9\"}\nnull\n{\"prompt\": \"b\"}\n{\"prompt\": \"\"}";
        let parsed = parse("p", content, true).unwrap();
        assert_eq!(parsed.prompts.iter().map(|prompt| prompt.id.as_str()).collect::<Vec<_>>(), ["line 1", "line 4"]);
        let starts = ["p line 2: byte 13 is not UTF-8", "p line 3: null where", "p line 5: field `prompt` is empty"];
        assert!(
            parsed.skipped.len() == 3 && parsed.skipped.iter().zip(starts).all(|(got, start)| got.starts_with(start))
        );
        assert!(parse("p", b"null\n", true).unwrap_err().to_string().contains("holds no prompt"));
    }
}
