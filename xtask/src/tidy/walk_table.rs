//! Rule: ARCHITECTURE.md names only functions that exist.
//!
//! In a table with a column `function`, each name in code font must be defined in one of the files
//! in the row's column `file`, or in any file if that column is empty. Files are matched by the end
//! of their path. For a path such as `Disk::run`, `run` must be in one of the files, and `Disk` in
//! any file.

use super::Finding;
use super::source::{Source, numbered};

const FILE: &str = "file";
const FUNCTION: &str = "function";

pub fn check(path: &str, text: &str, sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut columns = None;
    for (line, row) in numbered(text) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if !row.starts_with('|') {
            columns = None;
        } else if let Some((file, function)) = columns {
            let cell = |at: usize| cells.get(at).copied().unwrap_or_default();
            let wrong = check_row(cell(file), cell(function), sources);
            findings.extend(wrong.into_iter().map(|what| Finding::new(path, line, what)));
        } else {
            let place = |name| cells.iter().position(|cell| *cell == name);
            columns = place(FILE).zip(place(FUNCTION));
        }
    }
    findings
}

fn check_row(files: &str, functions: &str, sources: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut of_row: Vec<&Source> = Vec::new();
    for file in codes(files).filter(|code| code.ends_with(".rs")) {
        let before = of_row.len();
        let end = format!("/{file}");
        of_row.extend(sources.iter().filter(|source| source.path.ends_with(&end)));
        if of_row.len() == before {
            wrong.push(format!(
                "no file is called `{file}`; name the file with the functions of its row"
            ));
        }
    }
    if of_row.is_empty() {
        of_row.extend(sources);
    }
    let defines =
        |source: &&Source, name| source.outline.items.iter().any(|item| item.name == name);
    for code in codes(functions) {
        let (owner, name) = code.rsplit_once("::").map_or((None, code), |(a, b)| (Some(a), b));
        let owned = owner.is_none_or(|owner| sources.iter().any(|source| defines(&source, owner)));
        if !owned || !of_row.iter().any(|source| defines(source, name)) {
            let message =
                format!("`{code}` is not defined in the files of its row; correct the name");
            wrong.push(message);
        }
    }
    wrong
}

fn codes(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(row: &str) -> Vec<String> {
        let sources = [
            Source::parse("crates/a/src/b.rs", "pub struct B;\nimpl B { fn run(&self) {} }\n"),
            Source::parse("crates/a/src/c.rs", "trait C { fn poll(); }\n"),
        ];
        let text = format!("| step | file | function |\n|---|---|---|\n{row}\n");
        check("X.md", &text, &sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_defined_in_a_file_of_its_row_passes() {
        assert!(found("| 1 | `a/src/b.rs`, `c.rs` | `B::run`, `poll` |").is_empty());
        assert!(found("| 1 | driver | `C::poll` |").is_empty());
        assert!(found("| 1 | `b.rs` | |\n\ntext `gone`\n").is_empty());
    }

    #[test]
    fn functions_and_files_that_do_not_exist_fail() {
        assert_eq!(
            found("| 1 | `b.rs` | `poll` |"),
            ["X.md:3: `poll` is not defined in the files of its row; correct the name"]
        );
        assert_eq!(found("| 1 | `b.rs` | `Gone::run` |").len(), 1);
        assert_eq!(found("| 1 | `gone.rs` | |").len(), 1);
    }
}
