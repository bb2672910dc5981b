//! The start and the tables of the programs that compare millrace with others.
//!
//! Included by each of these examples. Owns nothing, and calls nothing of the workspace.

use std::process::ExitCode;

/// Prints the usage if that is asked for, or runs the program and names it with its error.
pub fn start(name: &str, usage: &str, run: fn(&[String]) -> Result<(), String>) -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("{usage}");
        return ExitCode::SUCCESS;
    }
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A table of text with columns as wide as their longest cell; the first line is its head.
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
