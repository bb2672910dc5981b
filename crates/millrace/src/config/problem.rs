//! What is wrong with a configuration, said so that a person can mend it.
//!
//! Owns the list of problems found and the file's name. Filled by document.rs, raw.rs, checked.rs
//! and by `serve` while it opens drives; printed by main. Every problem says where (file and
//! line), what (key and value) and what to do; all that can be found in one go are reported in one.

use std::fmt;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Line in the file, from 1.
    pub line: usize,
    /// What is wrong and what to do.
    pub text: String,
}

/// All that is wrong with one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    file: String,
    list: Vec<Problem>,
}

impl Problems {
    /// None yet.
    pub fn new(file: &str) -> Self {
        Problems { file: file.to_owned(), list: Vec::new() }
    }

    /// One more.
    pub fn add(&mut self, line: usize, text: impl Into<String>) {
        self.list.push(Problem { line, text: text.into() });
    }

    /// `value`, unless something is wrong; the problems then come in order of their lines.
    ///
    /// # Errors
    /// The problems, if there are any.
    pub fn unless_any<T>(mut self, value: T) -> Result<T, Problems> {
        if self.list.is_empty() {
            return Ok(value);
        }
        self.list.sort_by_key(|problem| problem.line);
        Err(self)
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{}:{}: {}", self.file, problem.line, problem.text)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// The known word that is most like `word`, as `; did you mean "x"?`, or the empty text.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let likeness = |name: &str| strsim::jaro_winkler(word, name);
    let best = known.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match best.filter(|name| likeness(name) > 0.65) {
        Some(name) => format!("; did you mean \"{name}\"?"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_listed_by_line_with_the_file_in_front() {
        let mut problems = Problems::new("a.toml");
        problems.add(7, "second");
        problems.add(2, "first");
        let error = problems.unless_any(()).unwrap_err();
        assert_eq!(error.to_string(), "a.toml:2: first\na.toml:7: second");
    }

    #[test]
    fn a_word_that_is_like_none_names_none() {
        assert_eq!(nearest("chnk", ["name", "chunk"]), "; did you mean \"chunk\"?");
        assert_eq!(nearest("zzz", ["name", "chunk"]), "");
    }
}
