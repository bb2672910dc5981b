//! Rule: unsafe code is confined to a few listed files, and each use explains why it is sound.
//!
//! A block or impl has a `SAFETY:` comment above it that names the invariant and who upholds it; an
//! `unsafe fn` has a `# Safety` section. `xtask/allow/unsafe.txt` names the files; an entry whose
//! file has no unsafe code is a finding. Called by `tidy::run`.

use super::Finding;
use super::allow::{AllowList, Excess};
use super::source::{Source, find_word, numbered};

/// Largest number of lines between the keyword and the end of its comment.
const REACH: usize = 6;

pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines: Vec<&str> = source.code.lines().collect();
    for (line, code) in numbered(&source.code) {
        for at in find_word(code, "unsafe") {
            let after = code[at + "unsafe".len()..].trim_start();
            // The brace may be on the next line.
            let next = match after.is_empty() {
                true => lines.get(line).map_or("", |next| next.trim_start()),
                false => after,
            };
            let opens = next.starts_with('{') || next.starts_with("impl");
            if opens && !source.comment_above(line, REACH).contains("SAFETY:") {
                let message = "unsafe without `// SAFETY:`; say above it which invariant makes it \
                               sound and who upholds it";
                findings.push(Finding::new(&source.path, line, message));
            }
        }
    }
    for item in source.outline.items.iter().filter(|item| item.is_unsafe) {
        if !item.docs.contains("# Safety") {
            let message = format!(
                "`unsafe fn {}` without a `# Safety` section; document what its caller must uphold",
                item.name
            );
            findings.push(Finding::new(&source.path, item.line, message));
        }
    }
    findings
}

pub fn check_list(sources: &[Source], list: &AllowList) -> Vec<Finding> {
    let message =
        "unsafe code in a file that xtask/allow/unsafe.txt does not list; write it in safe Rust";
    let uses = sources
        .iter()
        .filter_map(|source| first_use(source).map(|line| Excess::of_file(source, line, message)));
    list.check(uses.collect())
}

fn first_use(source: &Source) -> Option<usize> {
    numbered(&source.code)
        .find(|(_, code)| find_word(code, "unsafe").next().is_some())
        .map(|(line, _)| line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        check(&Source::parse("a.rs", text)).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn explained_unsafe_code_passes() {
        let text = "fn f() {\n    // SAFETY: the caller holds the lock.\n    unsafe { g() };\n}\n\
                    // SAFETY: no shared state.\nunsafe impl Send for A {}\n\
                    /// F.\n///\n/// # Safety\n///\n/// `p` is valid.\nunsafe fn h() {}\n\
                    type F = unsafe fn(u8);\n";
        assert_eq!(lines(text), [0_usize; 0]);
    }

    #[test]
    fn unexplained_unsafe_code_fails() {
        let text =
            "fn f() {\n    unsafe { g() };\n}\nunsafe impl Send for A {}\nunsafe fn h() {}\n";
        assert_eq!(lines(text), [2, 4, 5]);
    }

    #[test]
    fn the_list_names_exactly_the_files_with_unsafe_code() {
        let sources = [
            Source::parse("a.rs", "unsafe fn f() {}\n"),
            Source::parse("b.rs", "// unsafe\nfn f() {}\n"),
        ];
        let exact = AllowList::parse("list", "a.rs\n").unwrap();
        assert_eq!(check_list(&sources, &exact), []);
        let wrong = AllowList::parse("list", "# x\nb.rs\n").unwrap();
        let found: Vec<_> =
            check_list(&sources, &wrong).into_iter().map(|f| (f.path, f.line)).collect();
        assert_eq!(found, [("a.rs".to_owned(), 1), ("list".to_owned(), 2)]);
    }
}
