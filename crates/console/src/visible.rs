//! Makes texts from users and peers, such as names and paths, safe to print.
//!
//! A line feed in such a text could make it look like a separate message, and an escape sequence
//! could control the terminal. Pure functions, called wherever such a text is put into a message.

use std::borrow::Cow;

/// Escapes control characters as in a Rust string literal.
pub fn visible(text: &str) -> Cow<'_, str> {
    if text.contains(char::is_control) { escaped(text, "").into() } else { text.into() }
}

/// Escapes control characters except line feeds, for messages of several lines.
pub fn visible_lines(text: &str) -> String {
    escaped(text, "\n")
}

/// Quotes a text for a shell, as one word.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Quotes a text for a shell if it needs quoting.
pub fn shell_word(text: &str) -> Cow<'_, str> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:@%+,=".contains(letter);
    let plain = !text.is_empty() && text.chars().all(is_plain);
    if plain { text.into() } else { quoted(text).into() }
}

fn escaped(text: &str, kept: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() && !kept.contains(letter) {
            true => out.extend(letter.escape_debug()),
            false => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_all_others_stay() {
        assert_eq!(visible("a \"b\" \\ \u{fc}"), "a \"b\" \\ \u{fc}");
        assert_eq!(visible("a\nb\u{1b}[2J\0\u{9b}"), "a\\nb\\u{1b}[2J\\0\\u{9b}");
        assert_eq!(visible_lines("a\n\tb\r"), "a\n\\tb\\r");
    }

    #[test]
    fn words_that_a_shell_would_take_apart_are_quoted() {
        assert_eq!(
            ["vol-0_a.b", "a b", "a'\"b", "$x", ""].map(shell_word),
            ["vol-0_a.b", "'a b'", "'a'\\''\"b'", "'$x'", "''"]
        );
    }
}
