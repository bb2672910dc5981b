//! Text and ids as HTML may hold them.
//!
//! Called by whatever writes a part of a page, for every text and every id.

/// Text as HTML shows it, in elements and in quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c => html.push(c),
        }
    }
    html
}

/// An id as a link names it.
pub(super) fn anchor(id: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    id.chars().map(plain).collect()
}
