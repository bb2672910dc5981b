//! Lines of cells as a table of text, its columns as wide as their longest cell.

/// The table; the first line is its head.
pub fn table(lines: &[Vec<String>]) -> String {
    let Some(head) = lines.first() else { return String::new() };
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let text = |line: &Vec<String>| {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  "));
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    lines.iter().map(text).collect()
}
