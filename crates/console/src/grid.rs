//! `TextGrid`: rows below column heads as plain text, with two spaces between columns.
//!
//! `TextGrid` owns the layout that the tables of all verbs share: numbers are flush right, names
//! flush left, and lines have no trailing spaces. Widths are counted in characters.

use std::borrow::Borrow;

/// Widest table that a verb prints by default, in characters.
pub const WIDTH: usize = 80;
const GAP: usize = 2;

/// Alignment of a column's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Flush left, for names.
    Left,
    /// Flush right, for numbers.
    Right,
}

/// Selects the columns of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Only the columns that fit 80 characters.
    Short,
    /// All columns.
    Whole,
}

/// Column of a table of values of type `T`: its head, true if the short form shows it, and the
/// function that formats a cell.
pub type Column<T> = (&'static str, bool, fn(&T) -> String);

/// Rows below column heads.
#[derive(Debug, Clone, Default)]
pub struct TextGrid {
    heads: Vec<(String, Side)>,
    rows: Vec<Vec<String>>,
}

impl TextGrid {
    /// Makes a table without rows.
    pub fn new(heads: impl IntoIterator<Item = (impl Into<String>, Side)>) -> TextGrid {
        let heads = heads.into_iter().map(|(head, side)| (head.into(), side)).collect();
        TextGrid { heads, rows: Vec::new() }
    }

    /// Makes a table with a row for each pair of a name and a value of type `T`.
    pub fn of_rows<T>(
        head: &str,
        columns: &[(&str, bool, impl Fn(&T) -> String)],
        form: Form,
        rows: impl IntoIterator<Item = (String, impl Borrow<T>)>,
    ) -> TextGrid {
        let shown: Vec<_> = columns.iter().filter(|one| one.1 || form == Form::Whole).collect();
        let heads = shown.iter().map(|column| (column.0, Side::Right));
        let mut grid = TextGrid::new([(head, Side::Left)].into_iter().chain(heads));
        for (name, row) in rows {
            grid.row([name].into_iter().chain(shown.iter().map(|column| (column.2)(row.borrow()))));
        }
        grid
    }

    /// Aligns the cells of a column on the left.
    #[must_use]
    pub fn flush_left(mut self, head: &str) -> TextGrid {
        let column = self.heads.iter_mut().find(|(name, _)| name == head);
        column.into_iter().for_each(|(_, side)| *side = Side::Left);
        self
    }

    /// Adds a row with one cell per head.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    fn widths(&self) -> Vec<usize> {
        let of = |(place, (head, _)): (usize, &(String, Side))| {
            let cells = self.rows.iter().filter_map(|row| row.get(place));
            cells.chain([head]).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        self.heads.iter().enumerate().map(of).collect()
    }

    /// Returns the width of the table in characters.
    pub fn width(&self) -> usize {
        self.widths().iter().map(|width| width + GAP).sum::<usize>().saturating_sub(GAP)
    }

    /// Returns the table as text: the line of column headings, then the rows. The text has no line
    /// feed at the end.
    pub fn text(&self) -> String {
        let widths = self.widths();
        let line = |cells: &mut dyn Iterator<Item = &String>| {
            let columns = widths.iter().zip(&self.heads);
            let padded = cells.zip(columns).map(|(cell, (width, (_, side)))| match side {
                Side::Left => format!("{cell:<width$}"),
                Side::Right => format!("{cell:>width$}"),
            });
            let line = padded.collect::<Vec<_>>().join(&" ".repeat(GAP));
            line.trim_end().to_owned()
        };
        let head = line(&mut self.heads.iter().map(|(head, _)| head));
        let rows = self.rows.iter().map(|row| line(&mut row.iter()));
        std::iter::once(head).chain(rows).collect::<Vec<_>>().join("\n")
    }
}

/// Formats a number with up to two decimals, fewer if it would not fit `width` characters.
pub fn fitted(value: f64, width: usize) -> String {
    let fits = |decimals: &usize| format!("{value:.decimals$}").len() <= width;
    let decimals = [2, 1, 0].into_iter().find(fits).unwrap_or(0);
    format!("{value:.decimals$}")
}

/// Shortens a name to `width` characters by cutting out its middle.
pub fn shortened(name: &str, width: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= width {
        return name.to_owned();
    }
    let (begin, end) = (width / 2, width.saturating_sub(width / 2 + 1));
    let begin: String = letters[..begin].iter().collect();
    let end: String = letters[letters.len() - end..].iter().collect();
    format!("{begin}\u{2026}{end}")
}

/// Wraps words into lines of at most `width` characters. A longer word gets a line of its own.
pub fn wrapped(words: impl IntoIterator<Item = String>, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_on_the_right_and_names_on_the_left() {
        let mut grid = TextGrid::new([("", Side::Left), ("r/s", Side::Right), ("why", Side::Left)]);
        grid.row(["", "1", "x"]);
        grid.row(["d10", "12345", ""]);
        assert_eq!(grid.text(), "       r/s  why\n         1  x\nd10  12345");
        assert_eq!(grid.width(), 15);
    }

    #[test]
    fn a_long_name_keeps_its_begin_and_its_end() {
        assert_eq!(shortened("abcdefghij", 10), "abcdefghij");
        assert_eq!(shortened("abcdefghijk", 10), "abcde\u{2026}hijk");
        assert_eq!(shortened("abcdefghijk", 10).chars().count(), 10);
    }

    #[test]
    fn words_wrap_at_the_width() {
        let words = "one two three fourteen".split(' ').map(String::from);
        assert_eq!(wrapped(words, 9), "one two\nthree\nfourteen");
    }
}
