//! Converts a Markdown document to a manual page.
//!
//! Processes the few forms that docs/ uses: headings, paragraphs, lists, tables, code blocks, and
//! code, emphasis and links within a line. A table row becomes a tagged paragraph: its first cell
//! is the tag, and each cell between the first and the last is preceded by the name of its column.
//! Called by deb.rs for millrace.toml(5).

use std::fmt::Write;
use std::iter::Peekable;

pub struct ManualPage<'a> {
    pub name: &'a str,
    pub section: u8,
    pub about: &'a str,
    pub version: &'a str,
}

pub fn render(page: &ManualPage<'_>, document: &str) -> String {
    let ManualPage { name, section, about, version } = page;
    let title = name.to_uppercase();
    let mut text = format!(
        ".TH {title} {section} \"\" \"millrace {version}\"\n.SH NAME\n{name} \\- {about}\n"
    );
    let mut lines = document.lines().peekable();
    let mut columns: Vec<String> = Vec::new();
    while let Some(line) = lines.next() {
        if !line.starts_with('|') {
            columns.clear();
        }
        if line.starts_with("```") {
            code(&mut text, lines.by_ref().take_while(|line| !line.starts_with("```")));
        } else if let Some(first) = line.strip_prefix("    ") {
            let rest = std::iter::from_fn(|| lines.next_if(|line| line.starts_with("    ")));
            let rest: Vec<&str> = rest.map(|line| &line[4..]).collect();
            code(&mut text, std::iter::once(first).chain(rest));
        } else if let Some(title) = line.strip_prefix("# ") {
            let is_first = !text.contains("\n.SH DESCRIPTION\n");
            let title = if is_first { "DESCRIPTION".to_owned() } else { inline(title) };
            let _ = writeln!(text, ".SH {title}");
        } else if let Some(heading) = line.strip_prefix("## ") {
            let _ = writeln!(text, ".SH {}", inline(heading));
        } else if let Some(heading) = line.strip_prefix("### ") {
            let _ = writeln!(text, ".SS {}", inline(heading));
        } else if line.starts_with('|') {
            row(&mut text, line, &mut columns);
        } else if let Some(item) = line.strip_prefix("- ") {
            let item = paragraph(item, &mut lines);
            let _ = writeln!(text, ".IP \\(bu 2\n{}", begun(&inline(&item)));
        } else if line.trim().is_empty() {
            text.push_str(".PP\n");
        } else {
            let _ = writeln!(text, "{}", begun(&inline(&paragraph(line, &mut lines))));
        }
    }
    text
}

/// Joins the lines of a paragraph into one, because code and links may continue on the next line.
fn paragraph<'a>(first: &str, lines: &mut Peekable<impl Iterator<Item = &'a str>>) -> String {
    let begins = ["#", "|", "- ", "```", "    "];
    let is_more =
        |line: &&str| !line.is_empty() && !begins.iter().any(|begin| line.starts_with(begin));
    let rest = std::iter::from_fn(|| lines.next_if(is_more));
    std::iter::once(first).chain(rest).map(str::trim).collect::<Vec<_>>().join(" ")
}

fn code<'a>(text: &mut String, lines: impl Iterator<Item = &'a str>) {
    text.push_str(".PP\n.RS 4\n.nf\n");
    lines.for_each(|line| {
        let _ = writeln!(text, "{}", begun(&escaped(line)));
    });
    text.push_str(".fi\n.RE\n");
}

fn row(text: &mut String, line: &str, columns: &mut Vec<String>) {
    let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
    if columns.is_empty() {
        *columns = cells.iter().map(|cell| inline(cell)).collect();
        return;
    }
    if cells.iter().all(|cell| cell.chars().all(|letter| matches!(letter, '-' | ':'))) {
        return;
    }
    let Some((tag, rest)) = cells.split_first() else { return };
    let _ = writeln!(text, ".TP\n{}", begun(&inline(tag)));
    let named = rest.iter().zip(columns.iter().skip(1)).enumerate();
    let named =
        named.filter(|(_, (cell, _))| !cell.is_empty()).map(|(at, (cell, column))| {
            match at + 1 == rest.len() || column.is_empty() {
                true => inline(cell),
                false => format!("{column}: {}", inline(cell)),
            }
        });
    let _ = writeln!(text, "{}", begun(&named.collect::<Vec<_>>().join(". ")));
}

/// Converts text within a line: code and emphasis become bold, links become their text.
fn inline(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(['`', '*', '[']) {
        out.push_str(&escaped(&rest[..at]));
        let here = &rest[at..];
        let marked = ["`", "**"].into_iter().find_map(|mark| {
            let (inner, after) = here.strip_prefix(mark)?.split_once(mark)?;
            Some((format!("\\fB{}\\fR", escaped(&inner.replace('`', ""))), after))
        });
        let link = || {
            let (words, after) = here.strip_prefix('[')?.split_once("](")?;
            Some((inline(words), after.split_once(')')?.1))
        };
        match marked.or_else(link) {
            Some((words, after)) => {
                out.push_str(&words);
                rest = after;
            }
            None => {
                out.push_str(&here[..1]);
                rest = &here[1..];
            }
        }
    }
    out + &escaped(rest)
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

/// Protects a line from being read as a roff request.
fn begun(line: &str) -> String {
    match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: ManualPage<'_> =
        ManualPage { name: "m.toml", section: 5, about: "a file", version: "1.2" };

    fn body(document: &str) -> String {
        let page = render(&PAGE, document);
        let head = ".TH M.TOML 5 \"\" \"millrace 1.2\"\n.SH NAME\nm.toml \\- a file\n";
        page.strip_prefix(head).unwrap_or_else(|| panic!("{page}")).to_owned()
    }

    #[test]
    fn each_form_has_its_request() {
        let text = "# T\n\nWords of `serve\n-v` and a [link](x.md#y), **not** 2*3 \\ [x].\n- one\n\
                    # U\n## `[server]`\n### more\n.dots\n\n    a \\ b\n    .c\n```\nd\n```\n";
        let expected = ".SH DESCRIPTION\n.PP\nWords of \\fBserve \\-v\\fR and a link, \\fBnot\\fR \
                        2*3 \\e [x].\n.IP \\(bu 2\none\n.SH U\n.SH \\fB[server]\\fR\n.SS more\n\
                        \\&.dots\n.PP\n.PP\n.RS 4\n.nf\na \\e b\n\\&.c\n.fi\n.RE\n\
                        .PP\n.RS 4\n.nf\nd\n.fi\n.RE\n";
        assert_eq!(body(text), expected);
    }

    #[test]
    fn row_of_table_is_tagged_paragraph_with_names_of_its_columns() {
        let text = "| key | values | default | what |\n|---|---|---|---|\n\
                    | `n` | 1 to 2 | 1 | it |\n| `m` | | - | that |\n";
        let expected = ".TP\n\\fBn\\fR\nvalues: 1 to 2. default: 1. it\n.TP\n\\fBm\\fR\n\
                        default: \\-. that\n";
        assert_eq!(body(text), expected);
    }

    #[test]
    fn the_configuration_s_page_has_every_section_and_key() {
        let page = render(&PAGE, include_str!("../../../docs/configuration.md"));
        for part in [
            ".SH \\fB[server]\\fR\n",
            ".TP\n\\fBcontrol\\-admin\\-group\\fR\n",
            ".SS \\fBcache\\fR\n",
        ] {
            assert!(page.contains(part), "no {part}");
        }
        let is_left =
            |line: &&str| line.starts_with('|') || line.contains("](") || line.contains('`');
        assert_eq!(page.lines().find(is_left), None);
    }
}
