//! Splits Rust text into code, comments and string literals, keeping every line and column.
//!
//! Handles only what style rules need: nested block comments, plain, byte and raw strings,
//! character literals as opposed to lifetimes. It never fails: on text that is not Rust the split
//! is a guess. Called by `Source::parse`.

/// The three views of a text, all with the text's lines and byte columns.
pub struct SourceViews {
    /// Code without comments and without the content of literals.
    pub code: String,
    /// Comments, with their slashes.
    pub comments: String,
    /// String literals, with their quotes.
    pub strings: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenClass {
    Code,
    Comment,
    Text,
    Char,
}

/// Splits a text into its views.
pub fn split(text: &str) -> SourceViews {
    let bytes = text.as_bytes();
    let mut classes = Vec::with_capacity(bytes.len());
    while classes.len() < bytes.len() {
        let at = classes.len();
        let (class, end) = token(bytes, at);
        classes.resize(end.clamp(at + 1, bytes.len()), class);
    }
    let view = |class: TokenClass| {
        let keep = |(&byte, &own): (&u8, &TokenClass)| match own == class || byte == b'\n' {
            true => byte,
            false => b' ',
        };
        let kept: Vec<u8> = bytes.iter().zip(&classes).map(keep).collect();
        String::from_utf8_lossy(&kept).into_owned()
    };
    SourceViews {
        code: view(TokenClass::Code),
        comments: view(TokenClass::Comment),
        strings: view(TokenClass::Text),
    }
}

/// Returns the class of the token that starts at `at`, and its end.
fn token(bytes: &[u8], at: usize) -> (TokenClass, usize) {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        let len = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
        return (TokenClass::Comment, at + len);
    }
    if rest.starts_with(b"/*") {
        return (TokenClass::Comment, at + block_comment_len(rest));
    }
    if rest[0] == b'"' {
        return (TokenClass::Text, at + quoted_len(rest, b'"'));
    }
    if rest[0] == b'\'' {
        return match is_char_literal(rest) {
            true => (TokenClass::Char, at + quoted_len(rest, b'\'')),
            false => (TokenClass::Code, at + 1),
        };
    }
    if rest[0].is_ascii_alphabetic() || rest[0] == b'_' {
        // Take the whole name at once, so that the `r` of `for "` is not mistaken for a raw
        // string's.
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let name = rest.iter().position(|byte| !is_name(byte)).unwrap_or(rest.len());
        if matches!(&rest[..name], b"r" | b"br" | b"cr")
            && let Some(len) = raw_string_len(&rest[name..])
        {
            return (TokenClass::Text, at + name + len);
        }
        return (TokenClass::Code, at + name);
    }
    (TokenClass::Code, at + 1)
}

fn block_comment_len(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn quoted_len(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Returns the length of `#*"..."#*` at the start of `rest`; None for anything else, such as a raw
/// identifier `r#type`.
fn raw_string_len(rest: &[u8]) -> Option<usize> {
    let hashes = rest.iter().take_while(|&&byte| byte == b'#').count();
    if rest.get(hashes) != Some(&b'"') {
        return None;
    }
    let body = hashes + 1;
    let mut close = vec![b'"'];
    close.resize(body, b'#');
    let end = rest[body..].windows(close.len()).position(|window| window == close);
    Some(end.map_or(rest.len(), |at| body + at + close.len()))
}

/// Returns true for `'a'`, `'\n'` or a non-ASCII character literal, and false for a lifetime `'a`.
fn is_char_literal(rest: &[u8]) -> bool {
    match rest.get(1) {
        Some(b'\\') => true,
        Some(byte) if !byte.is_ascii() => true,
        Some(_) => rest.get(2) == Some(&b'\''),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        split(text).code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn strings_and_comments_are_not_code() {
        assert_eq!(code("a(); // b()\n/* c /* d */ e */ f(\"g()\", b\"h\");"), "a(); f( , b );");
        assert_eq!(code(r##"let a = r#"x " y"#; let r#type = 1;"##), "let a = ; let r#type = 1;");
        assert_eq!(code(r#"for "\" // x" in y"#), "for in y");
    }

    #[test]
    fn a_lifetime_is_code_and_a_character_is_not() {
        assert_eq!(code("fn f<'a>(x: &'a u8) { '\"'; '\\''; '{' }"), "fn f<'a>(x: &'a u8) { ; ; }");
    }

    #[test]
    fn views_keep_lines_and_columns() {
        let text = "let a = \"x\n y\"; // z\n";
        let views = split(text);
        for view in [&views.code, &views.comments, &views.strings] {
            assert_eq!(view.len(), text.len());
            assert_eq!(view.lines().count(), 2);
        }
        assert_eq!(views.comments.find("// z"), text.find("// z"));
        assert_eq!(views.strings.find("\"x"), text.find("\"x"));
    }
}
