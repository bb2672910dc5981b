//! Rule: files, functions and structs are small.
//!
//! Only lines outside tests count. `xtask/allow/size.txt` lists larger ones, as `path lines`,
//! `path:function lines` or `path:Struct fields`, with their exact size: when one shrinks, its
//! entry must be lowered or removed. Called by `tidy::run`.

use super::Finding;
use super::allow::AllowList;
use super::source::{ItemKind, Source};

const FILE_WARN: usize = 400;
const FILE_MAX: usize = 600;
/// Functions with more lines than this are counted in a warning.
pub const FUNCTION_WARN: usize = 40;
const FUNCTION_MAX: usize = 70;
const FIELDS_MAX: usize = 15;

/// Size of a file, function or struct.
struct MeasuredSize {
    key: String,
    path: String,
    line: usize,
    size: usize,
    size_max: usize,
    advice: &'static str,
}

/// Sizes that are large but allowed.
pub struct Warnings {
    /// One sentence for each long file.
    pub files: Vec<String>,
    /// Number of long functions.
    pub functions: usize,
}

/// Checks all files against the limits and the list.
pub fn check(sources: &[Source], list: &AllowList) -> Vec<Finding> {
    let measures: Vec<MeasuredSize> = sources.iter().flat_map(measure).collect();
    let mut findings = Vec::new();
    for measure in measures.iter().filter(|measure| measure.size > measure.size_max) {
        let limit = list.get(&measure.key).and_then(|entry| entry.limit);
        let allowed = limit.unwrap_or(measure.size_max);
        if measure.size > allowed {
            let message = format!("{} {}; {allowed} are allowed", subject(measure), measure.advice);
            findings.push(Finding::new(&measure.path, measure.line, message));
        }
    }
    for entry in &list.entries {
        let sizes = measures.iter().filter(|measure| measure.key == entry.key);
        let real = sizes.filter(|measure| measure.size > measure.size_max).map(|m| m.size).max();
        let message = match (real, entry.limit) {
            (None, _) => format!("{} is within the limits; remove the entry", entry.key),
            (Some(real), None) => {
                format!("{} lacks its size; write {real} after the key", entry.key)
            }
            (Some(real), Some(limit)) if limit > real => {
                format!("{} has shrunk to {real}; write this number instead of {limit}", entry.key)
            }
            _ => continue,
        };
        findings.push(Finding::new(&list.path, entry.line, message));
    }
    findings
}

/// Returns warnings about files and functions near the limits.
pub fn warnings(sources: &[Source]) -> Warnings {
    let mut warnings = Warnings { files: Vec::new(), functions: 0 };
    for source in sources {
        let lines = source.line_count();
        if lines > FILE_WARN && lines <= FILE_MAX {
            let sentence =
                format!("{}: {lines} lines outside tests; aim at 100 to 300", source.path);
            warnings.files.push(sentence);
        }
        let long = |item: &&super::source::Item| {
            item.kind == ItemKind::Function && item.size > FUNCTION_WARN
        };
        let outside_tests = source.items.iter().filter(|item| !source.is_test(item.line));
        warnings.functions += outside_tests.filter(long).count();
    }
    warnings
}

fn measure(source: &Source) -> Vec<MeasuredSize> {
    let file = MeasuredSize {
        key: source.path.clone(),
        path: source.path.clone(),
        line: 1,
        size: source.line_count(),
        size_max: FILE_MAX,
        advice: "lines outside tests: split it by what it owns",
    };
    let items = source.items.iter().filter(|item| !source.is_test(item.line)).map(|item| {
        let (size_max, advice) = match item.kind {
            ItemKind::Function => (FUNCTION_MAX, "lines: move a part into a function of its own"),
            ItemKind::Struct => (FIELDS_MAX, "fields: group those that change together"),
        };
        let key = format!("{}:{}", source.path, item.name);
        MeasuredSize {
            key,
            path: source.path.clone(),
            line: item.line,
            size: item.size,
            size_max,
            advice,
        }
    });
    std::iter::once(file).chain(items).collect()
}

/// Formats the subject of a message: `name has 71`, or `the file has 601`.
fn subject(measure: &MeasuredSize) -> String {
    let name = measure.key.strip_prefix(&measure.path).unwrap_or_default();
    match name.strip_prefix(':') {
        Some(name) => format!("`{name}` has {}", measure.size),
        None => format!("the file has {}", measure.size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, list: &str) -> Vec<String> {
        let sources = [Source::parse("a.rs", text)];
        let list = AllowList::parse("size.txt", list).unwrap();
        check(&sources, &list).iter().map(ToString::to_string).collect()
    }

    fn function(lines: usize) -> String {
        format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines))
    }

    #[test]
    fn sizes_at_their_limits_pass() {
        assert!(found(&"// x\n".repeat(600), "").is_empty());
        assert!(found(&function(70), "").is_empty());
        assert!(found(&format!("struct A {{ {} }}\n", field_list(15)), "").is_empty());
        let long_tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(700));
        assert!(found(&long_tests, "").is_empty());
    }

    fn field_list(count: usize) -> String {
        (0..count).map(|index| format!("f{index}: u8,")).collect()
    }

    #[test]
    fn sizes_past_their_limits_fail() {
        assert_eq!(found(&"// x\n".repeat(601), "").len(), 1);
        assert_eq!(
            found(&function(71), ""),
            ["a.rs:1: `f` has 71 lines: move a part into a function of its own; 70 are allowed"]
        );
        assert_eq!(found(&format!("struct A {{ {} }}\n", field_list(16)), "").len(), 1);
    }

    #[test]
    fn an_entry_allows_exactly_what_is_there() {
        assert!(found(&"// x\n".repeat(650), "a.rs 650\n").is_empty());
        assert!(found(&function(80), "a.rs:f 80\n").is_empty());
        assert_eq!(found(&"// x\n".repeat(651), "a.rs 650\n").len(), 1);
    }

    #[test]
    fn an_entry_that_is_too_large_or_not_needed_fails() {
        assert_eq!(
            found(&"// x\n".repeat(650), "a.rs 651\n"),
            ["size.txt:1: a.rs has shrunk to 650; write this number instead of 651"]
        );
        assert_eq!(
            found("// x\n", "a.rs 600\n"),
            ["size.txt:1: a.rs is within the limits; remove the entry"]
        );
        assert_eq!(found("// x\n", "gone.rs 700\n").len(), 1);
    }

    #[test]
    fn long_files_and_functions_are_warned_of_before_they_fail() {
        let sources = [
            Source::parse("a.rs", &"// x\n".repeat(401)),
            Source::parse("b.rs", &function(41)),
            Source::parse("c.rs", &function(40)),
        ];
        let warnings = warnings(&sources);
        assert_eq!((warnings.files.len(), warnings.functions), (1, 1));
    }
}
