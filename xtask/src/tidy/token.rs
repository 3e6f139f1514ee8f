//! Rust source as a flat list of tokens with their lines.
//!
//! Comments are absent and literals are blank, so a rule that looks for a word never meets it in prose or in a string.

use std::str::FromStr;

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A word, one sign of punctuation, one bracket, or a literal with its text left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// Line in the file, from 1.
    pub(crate) line: usize,
}

/// Splits source text into tokens. Fails where the text is not Rust.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token>> {
    let stream = TokenStream::from_str(text)
        .map_err(|error| anyhow!("line {}: not a Rust token: {error}", error.span().start().line))?;
    let mut flat = Vec::new();
    flatten(stream, &mut flat);
    Ok(flat)
}

/// The tokens between the brackets of each attribute, outer and inner ones alike. Doc comments are attributes here.
pub(crate) fn attributes(tokens: &[Token]) -> impl Iterator<Item = &[Token]> {
    let starts = (0..tokens.len()).filter(|&i| tokens[i].text == "#");
    starts.filter_map(|i| {
        let rest = &tokens[i + 1..];
        let rest = after(after(rest, "!").unwrap_or(rest), "[")?;
        let mut depth = 1;
        let end = rest.iter().position(|token| {
            match token.text.as_str() {
                "[" => depth += 1,
                "]" => depth -= 1,
                _ => {}
            }
            depth == 0
        })?;
        Some(&rest[..end])
    })
}

/// What follows a token with the given text, if the list starts with one.
fn after<'a>(tokens: &'a [Token], text: &str) -> Option<&'a [Token]> {
    let (first, rest) = tokens.split_first()?;
    (first.text == text).then_some(rest)
}

fn flatten(stream: TokenStream, flat: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Ident(word) => flat.push(Token { text: word.to_string(), line }),
            TokenTree::Punct(sign) => flat.push(Token { text: sign.as_char().to_string(), line }),
            TokenTree::Literal(_) => flat.push(Token { text: String::new(), line }),
            TokenTree::Group(group) => {
                let (open, close) = brackets(group.delimiter());
                flat.push(Token { text: open.to_owned(), line });
                flatten(group.stream(), flat);
                flat.push(Token { text: close.to_owned(), line: group.span_close().start().line });
            }
        }
    }
}

fn brackets(delimiter: Delimiter) -> (&'static str, &'static str) {
    match delimiter {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => ("", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(tokens: &[Token]) -> String {
        tokens.iter().map(|token| token.text.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_literals_hold_no_words() {
        let check = |text, expected| assert_eq!(joined(&tokens(text).unwrap()), expected, "{text}");
        check("let x = \"unsafe\"; // unsafe", "let x =  ;");
        check("/* unsafe /* unsafe */ */ fn f<'a>() {}", "fn f < ' a > ( ) { }");
        check("let c = 'u'; let r = br#\"unsafe\"#;", "let c =  ; let r =  ;");
        check("unsafe { r#unsafe(); }", "unsafe { r#unsafe ( ) ; }");
    }

    #[test]
    fn lines_count_from_one() {
        let tokens = tokens("// first\n\nfn f() {\n}").unwrap();
        assert_eq!((tokens[0].line, tokens.last().unwrap().line), (3, 4));
    }

    #[test]
    fn text_that_is_not_rust_is_refused_with_its_line() {
        assert!(tokens("fn f() {\n\n]").unwrap_err().to_string().starts_with("line "));
    }

    #[test]
    fn attributes_are_found_with_their_nested_brackets() {
        let check = |text, expected: &[&str]| {
            let tokens = tokens(text).unwrap();
            assert_eq!(attributes(&tokens).map(joined).collect::<Vec<_>>(), expected, "{text}");
        };
        check("#![a] #[b(c)] fn f() {}", &["a", "b ( c )"]);
        check("#[a([1, 2])] struct S;", &["a ( [  ,  ] )"]);
        check("macro_rules! m { ($($x:expr),*) => { [#$x] } }", &[]);
    }
}
