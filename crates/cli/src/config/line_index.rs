//! `LineIndex`: converts byte offsets in a text to line numbers.
//!
//! The index is built once for each configuration, so that finding a line takes equally long
//! anywhere in the text. document.rs and sections.rs use it.

#[derive(Debug)]
pub struct LineIndex {
    line_feeds: Vec<usize>,
}

impl LineIndex {
    pub fn new(text: &str) -> LineIndex {
        LineIndex { line_feeds: text.match_indices('\n').map(|(at, _)| at).collect() }
    }

    /// Returns the line number, from 1, of a byte offset. An offset past the end of the text gives
    /// the last line.
    pub fn line_of(&self, at: usize) -> usize {
        1 + self.line_feeds.partition_point(|line_feed| *line_feed < at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Counts from the beginning of the text.
    fn counted(text: &str, at: usize) -> usize {
        let before = &text.as_bytes()[..at.min(text.len())];
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    #[test]
    fn a_line_feed_belongs_to_the_line_that_it_ends() {
        let lines = LineIndex::new("a\n\nb\n");
        let found: Vec<usize> = (0..7).map(|at| lines.line_of(at)).collect();
        assert_eq!(found, [1, 1, 2, 3, 3, 4, 4]);
        assert_eq!(LineIndex::new("").line_of(0), 1);
    }

    proptest! {
        #[test]
        fn every_offset_has_the_line_that_counting_gives(
            text in "[a\n\r\u{e9}]{0,60}",
            beyond in 0usize..5,
        ) {
            let lines = LineIndex::new(&text);
            for at in 0..text.len() + beyond {
                let expected = counted(&text, at);
                prop_assert_eq!(lines.line_of(at), expected, "offset {} of {:?}", at, text);
            }
        }
    }
}
