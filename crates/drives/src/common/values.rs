//! Parses the values of drive specs: switches, ranges, and lists of `key=value`.
//!
//! The functions return `None` for an invalid value; the caller names the key in its error.
//! `units.rs` parses numbers with units.

use super::units::size_bytes;

/// Parses `on` or `off`, or one of their synonyms.
pub(crate) fn switch(text: &str) -> Option<bool> {
    match text {
        "on" | "true" | "yes" | "1" => Some(true),
        "off" | "false" | "no" | "0" => Some(false),
        _ => None,
    }
}

/// Parses `START-END` in bytes, each with an optional suffix. The end is exclusive.
pub(crate) fn byte_range(text: &str) -> Option<std::ops::Range<u64>> {
    let (start, end) = text.split_once('-')?;
    let range = size_bytes(start).ok()?..size_bytes(end).ok()?;
    (range.start < range.end).then_some(range)
}

/// Splits `text` at separators outside parentheses. Returns `None` if the parentheses are not
/// balanced.
pub(crate) fn split_outside(text: &str, separator: char) -> Option<Vec<&str>> {
    let (mut pieces, mut depth, mut start) = (Vec::new(), 0u32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            c if c == separator && depth == 0 => {
                pieces.push(&text[start..at]);
                start = at + c.len_utf8();
            }
            _ => {}
        }
    }
    pieces.push(&text[start..]);
    (depth == 0).then_some(pieces)
}

pub(crate) fn unwrapped(text: &str) -> &str {
    match text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        Some(inside) if split_outside(inside, ',').is_some() => inside,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_in_parentheses_do_not_split() {
        assert_eq!(split_outside("a,(b,c),d", ','), Some(vec!["a", "(b,c)", "d"]));
        assert_eq!(split_outside("a,(b", ','), None);
        assert_eq!(split_outside("a)", ','), None);
        assert_eq!(unwrapped("(a,b)"), "a,b");
        assert_eq!(unwrapped("(a)(b)"), "(a)(b)");
    }

    #[test]
    fn range_that_is_empty_or_backwards_is_none() {
        assert_eq!(byte_range("4k-1m"), Some(4096..1 << 20));
        assert_eq!(byte_range("4k-4k"), None);
        assert_eq!(byte_range("4k"), None);
    }
}
