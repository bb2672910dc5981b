//! Wraps the examples and notes below a help text at 80 columns.
//!
//! clap would wrap these texts at the width of the terminal and break their columns. With 80
//! columns, every line fits on a terminal, in a pipe and on a manual page.

use clap::Command;

use crate::grid::{WIDTH, wrapped};

const COMMAND_INDENT: usize = 6;

/// Wraps the examples and notes below the help of a command and of all its subcommands.
pub fn wrap_after_help(command: Command) -> Command {
    let text = command.get_after_help().map(|text| wrapped_text(&text.to_string()));
    let long_text = command.get_after_long_help().map(|text| wrapped_text(&text.to_string()));
    let mut command = command.mut_subcommands(wrap_after_help);
    if let Some(text) = text {
        command = command.after_help(text);
    }
    if let Some(text) = long_text {
        command = command.after_long_help(text);
    }
    command
}

fn wrapped_text(text: &str) -> String {
    let mut rows: Vec<String> = Vec::new();
    let mut before = "";
    for line in text.lines() {
        match rows.last_mut() {
            Some(row) if continues(row, before, line) => {
                row.truncate(row.strip_suffix(" \\").unwrap_or(row).len());
                row.push(' ');
                row.push_str(line.trim_start());
            }
            _ => rows.push(line.to_owned()),
        }
        before = line;
    }
    rows.iter().map(|row| wrapped_row(row)).collect::<Vec<_>>().join("\n")
}

/// Returns true if `line` continues `row`. `before` is the line before `line` in the help text.
/// There are three kinds of continuation:
/// - after a backslash at the end of `before`;
/// - below the last column of `row`, if `line` is indented to that column;
/// - in a paragraph, if `before` is longer than 80 columns and does not end with `.` or `:`, and
///   `line` has the same indentation. Lines indented by 2 are commands, not paragraphs.
fn continues(row: &str, before: &str, line: &str) -> bool {
    let indent = indent_of(line);
    let is_text = |line: &str| !line.is_empty() && last_column(line).is_none();
    let is_cell = indent > 2 && last_column(row) == Some(indent) && is_text(line);
    let is_paragraph = indent == indent_of(before)
        && indent != 2
        && before.chars().count() > WIDTH
        && !before.ends_with(['.', ':'])
        && is_text(before)
        && is_text(line);
    before.ends_with(" \\") || is_cell || is_paragraph
}

fn wrapped_row(row: &str) -> String {
    if row.chars().count() <= WIDTH {
        return row.to_owned();
    }
    let is_command = indent_of(row) == 2 && last_column(row).is_none();
    let (start, indent) = match last_column(row) {
        Some(column) => (column, column),
        None if is_command => (2, COMMAND_INDENT),
        None => (indent_of(row), indent_of(row)),
    };
    let head: String = row.chars().take(start).collect();
    let words = row.chars().skip(start).collect::<String>();
    let width = WIDTH - indent - if is_command { 2 } else { 0 };
    let lines = wrapped(words.split(' ').map(str::to_owned), width);
    let end = if is_command { " \\\n" } else { "\n" };
    format!("{head}{}", lines.replace('\n', &format!("{end}{}", " ".repeat(indent))))
}

fn indent_of(line: &str) -> usize {
    line.chars().take_while(|letter| *letter == ' ').count()
}

/// Returns the column at which the text after the last gap of two or more spaces begins, if any.
fn last_column(line: &str) -> Option<usize> {
    let letters: Vec<char> = line.chars().collect();
    let begins = |at: &usize| letters[*at] != ' ' && letters[at - 2..*at] == [' ', ' '];
    (indent_of(line) + 2..letters.len()).rfind(begins)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_wraps_below_its_last_column() {
        let text =
            format!("  r/s   {}\n        and more\n  w/s   writes", "word ".repeat(15).trim());
        let expected =
            format!("  r/s   {}\n        word and more\n  w/s   writes", "word ".repeat(14).trim());
        assert_eq!(wrapped_text(&text), expected);
    }

    #[test]
    fn wrapped_lines_are_joined_before_they_are_wrapped_again() {
        let words = |count| "word ".repeat(count).trim().to_owned();
        let text = format!("{}\n{}.\nNext.", words(19), words(3));
        let expected = format!("{}\n{}.\nNext.", words(16), words(6));
        assert_eq!(wrapped_text(&text), expected);
        let command = "  p --one \\\n      --two\n      does both";
        assert_eq!(wrapped_text(command), "  p --one --two\n      does both");
    }

    #[test]
    fn a_long_command_is_broken_so_that_it_can_be_pasted() {
        let text = format!("  p --name {} --json", "x".repeat(70));
        assert_eq!(
            wrapped_text(&text),
            format!("  p --name \\\n      {} \\\n      --json", "x".repeat(70))
        );
    }

    #[test]
    fn a_paragraph_wraps_at_80_columns_in_subcommands_too() {
        let verb = Command::new("verb").after_help("word ".repeat(30).trim().to_owned());
        let mut program = wrap_after_help(Command::new("p").subcommand(verb));
        let verb = program.find_subcommand_mut("verb").unwrap();
        let text = verb.get_after_help().unwrap().to_string();
        assert!(text.lines().count() == 2 && text.lines().all(|line| line.len() <= 80), "{text}");
    }
}
