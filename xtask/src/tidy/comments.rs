//! Rule: every sentence of a comment stands by itself, and begins with its subject or a verb.
//!
//! Forbidden beginnings of a sentence are "The same", "That of" and "As above", and "Who" unless
//! the sentence is a question. A comment must not begin with a question word or a pronoun.
//! `xtask/allow/comments.txt` has the number of exceptions of each crate.

use super::Finding;
use super::allow::{AllowList, Excess};
use super::source::{Source, numbered};

const LEANING: [(&str, &str); 4] = [
    ("The same", "name the thing"),
    ("That of", "name the thing"),
    ("As above", "repeat what is meant, or name the item that says it"),
    ("Who", "name the person or thing, or write `Whoever` if you mean anyone"),
];

/// Words with which no comment may begin, because they do not name the subject.
const UNNAMED: [&str; 9] =
    ["What", "Which", "Whether", "How", "Why", "It", "They", "Those", "None"];

pub fn check(sources: &[Source], list: &AllowList) -> Vec<Finding> {
    let excesses = sources.iter().flat_map(|source| {
        leaning(source).into_iter().map(|(line, start, advice)| {
            let message = format!("a sentence begins with \"{start}\"; {advice}");
            let finding = Finding::new(&source.path, line, message);
            Excess { key: source.crate_path().to_owned(), amount: 1, finding }
        })
    });
    list.check(excesses.collect())
}

fn leaning(source: &Source) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    for paragraph in paragraphs(source) {
        for (number, (line, sentence)) in sentences(&paragraph).into_iter().enumerate() {
            let starts = |start: &str| {
                let rest = sentence.strip_prefix(start);
                rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
            };
            let asks = sentence.ends_with('?');
            if let Some((start, advice)) = LEANING.iter().find(|(start, _)| starts(start) && !asks)
            {
                found.push((line, *start, *advice));
            } else if let Some(start) = UNNAMED.iter().find(|start| starts(start))
                && number == 0
                && !asks
            {
                found.push((line, *start, "begin the sentence with its subject or a verb"));
            }
        }
    }
    found
}

/// Groups the comment lines that belong together, without their slashes, each with its line number.
fn paragraphs(source: &Source) -> Vec<Vec<(usize, &str)>> {
    let mut all: Vec<Vec<(usize, &str)>> = vec![Vec::new()];
    let mut before = "";
    for ((line, comment), code) in numbered(&source.comments).zip(source.code.lines()) {
        let comment = comment.trim();
        let slashes = &comment[..comment.len() - comment.trim_start_matches(['/', '!', '*']).len()];
        let text = comment[slashes.len()..].trim();
        let is_item = ["- ", "* ", "# "].iter().any(|mark| text.starts_with(mark));
        let goes_on = slashes == before && code.trim().is_empty() && !is_item && !text.is_empty();
        if !goes_on {
            all.push(Vec::new());
        }
        before = slashes;
        let text = text.trim_start_matches(['-', '*', '#', ' ']);
        all.last_mut().expect("the list has an entry, made above").push((line, text));
    }
    all
}

fn sentences(paragraph: &[(usize, &str)]) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut ended = true;
    for (line, text) in paragraph {
        for word in text.split_whitespace() {
            if ended {
                all.push((*line, String::new()));
            }
            let sentence = &mut all.last_mut().expect("a sentence was begun").1;
            if !sentence.is_empty() {
                sentence.push(' ');
            }
            sentence.push_str(word);
            ended = word.ends_with(['.', '?', '!']);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        leaning(&Source::parse("a.rs", text)).iter().map(|found| found.0).collect()
    }

    #[test]
    fn sentences_with_their_subjects_pass() {
        let text = "/// Takes a tag. Whoever waits is woken.\n/// The samest, who asks?\nfn f() {}\n\
                    // In the middle: The same\nlet a = \"// The same\"; // Who asks?\n";
        assert_eq!(lines(text), [0_usize; 0]);
    }

    #[test]
    fn comments_that_begin_without_their_subject_fail() {
        let text = "/// What it holds.\nfn f() {}\n// It is full. It waits.\n\n/// Whether it is.\n\
                    fn g() {}\n/// Ones. It waits.\nfn h() {} // Why?\n";
        assert_eq!(lines(text), [1, 3, 5]);
    }

    #[test]
    fn sentences_that_lean_on_neighbours_fail_anywhere() {
        let text = "/// The same with what wakes it.\nfn f() {}\n/// Takes a tag. That\n\
                    /// of another. As above.\nfn g() {} // Who finds it takes it.\n\
                    //! - The same.\n";
        assert_eq!(lines(text), [1, 3, 4, 5, 6]);
    }
}
