//! Splits Rust text into code, comments and string literals, keeping every line and column.
//!
//! proc-macro2 finds the literals; it also returns doc comments as literals. Outside these
//! literals, a slash is code or begins a comment. `Source::parse` calls this file.

use proc_macro2::{Span, TokenStream, TokenTree};

/// A text split into three views: code, comments and string literals. Each view has the same lines
/// and byte columns as the text.
#[derive(Debug, Default)]
pub struct SourceViews {
    pub code: String,
    pub comments: String,
    pub strings: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenClass {
    Comment,
    Code,
    Text,
    Char,
}

pub fn split(text: &str, tokens: TokenStream) -> SourceViews {
    let mut classes = vec![TokenClass::Code; text.len()];
    each_literal(tokens, &mut |span| {
        let range = span.byte_range();
        // A literal token is a doc comment, a string, a character or a number. The first slash or
        // quotation mark in the token's text tells the kind. A number has neither, and keeps the
        // class `Code`.
        let class = match text[range.clone()].chars().find(|c| matches!(c, '/' | '"' | '\'')) {
            Some('/') => TokenClass::Comment,
            Some('"') => TokenClass::Text,
            Some(_) => TokenClass::Char,
            None => return,
        };
        classes[range].fill(class);
    });
    for (at, _) in text.match_indices('/') {
        if classes[at] == TokenClass::Code {
            let len = comment_len(&text[at..]);
            classes[at..at + len].fill(TokenClass::Comment);
        }
    }
    let view = |class: TokenClass| {
        let keep = |(byte, own): (u8, &TokenClass)| match *own == class || byte == b'\n' {
            true => byte,
            false => b' ',
        };
        let kept: Vec<u8> = text.bytes().zip(&classes).map(keep).collect();
        String::from_utf8_lossy(&kept).into_owned()
    };
    SourceViews {
        code: view(TokenClass::Code),
        comments: view(TokenClass::Comment),
        strings: view(TokenClass::Text),
    }
}

fn each_literal(tokens: TokenStream, found: &mut dyn FnMut(Span)) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => each_literal(group.stream(), found),
            TokenTree::Literal(literal) => found(literal.span()),
            _ => {}
        }
    }
}

/// Returns the length of the comment that `text` begins with, or zero.
fn comment_len(text: &str) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    let mut depth = 0_usize;
    let marks = text.match_indices(['/', '*']).map(|(at, _)| at);
    for at in marks {
        match text.get(at..at + 2) {
            Some("/*") => depth += 1,
            Some("*/") => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if at == 0 { 0 } else { at + 2 };
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn views(text: &str) -> SourceViews {
        split(text, text.parse().unwrap())
    }

    fn code(text: &str) -> String {
        views(text).code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn strings_and_comments_are_not_code() {
        assert_eq!(code("a(); // b()\n/* c /* d */ e */ f(\"g()\", b\"h\");"), "a(); f( , );");
        assert_eq!(code(r##"let a = r#"x " y"#; let r#type = 1;"##), "let a = ; let r#type = 1;");
        assert_eq!(code(r#"for "\" // x" in y"#), "for in y");
        assert_eq!(code("//! a\n/// b\n/** c */ #[doc = \"d\"] fn e() {}"), "#[doc = ] fn e() {}");
    }

    #[test]
    fn a_lifetime_is_code_and_a_character_is_not() {
        assert_eq!(code("fn f<'a>(x: &'a u8) { '\"'; '\\''; '{' }"), "fn f<'a>(x: &'a u8) { ; ; }");
    }

    #[test]
    fn views_keep_lines_and_columns() {
        let text = "let a = \"x\n y\"; // z\n";
        let views = views(text);
        for view in [&views.code, &views.comments, &views.strings] {
            assert_eq!(view.len(), text.len());
            assert_eq!(view.lines().count(), 2);
        }
        assert_eq!(views.comments.find("// z"), text.find("// z"));
        assert_eq!(views.strings.find("\"x"), text.find("\"x"));
    }
}
