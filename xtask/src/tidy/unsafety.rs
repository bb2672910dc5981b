//! Rule: unsafe code is confined to the files that `xtask/allow/unsafe.txt` lists.
//!
//! An entry whose file has no unsafe code is a finding, too. Clippy demands the `SAFETY:` comments
//! and `# Safety` sections (`undocumented_unsafe_blocks`, `missing_safety_doc`).

use super::Finding;
use super::allow::{AllowList, Excess};
use super::source::{Source, has_word, numbered};

pub fn check(sources: &[Source], list: &AllowList) -> Vec<Finding> {
    let message =
        "unsafe code in a file that xtask/allow/unsafe.txt does not list; write it in safe Rust";
    let uses = sources.iter().filter_map(|source| {
        let (line, _) = numbered(&source.code).find(|(_, code)| has_word(code, "unsafe"))?;
        Some(Excess::of_file(source, line, message))
    });
    list.check(uses.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_exactly_the_files_with_unsafe_code() {
        let sources = [
            Source::parse("a.rs", "unsafe fn f() {}\n"),
            Source::parse("b.rs", "// unsafe\nfn f() {}\n"),
        ];
        let exact = AllowList::parse("list", "a.rs\n").unwrap();
        assert_eq!(check(&sources, &exact), []);
        let wrong = AllowList::parse("list", "# x\nb.rs\n").unwrap();
        let found: Vec<_> = check(&sources, &wrong).into_iter().map(|f| (f.path, f.line)).collect();
        assert_eq!(found, [("a.rs".to_owned(), 1), ("list".to_owned(), 2)]);
    }
}
