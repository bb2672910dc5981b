//! Checks what every rendering must keep: all texts escaped, nothing to load, the same bytes, the
//! shape.

use super::*;

/// A page with every part, each of whose texts is `text` and a number.
fn page_of(text: &str) -> Page {
    let mut count = 0;
    let mut next = || {
        count += 1;
        format!("{text}{count}")
    };
    let series = |name: String, kind| Series { name, kind, points: vec![(1.0, 8e5), (2.0, 1.6e6)] };
    let kinds = [SeriesKind::Ours, SeriesKind::Paper, SeriesKind::Prediction];
    let panel = Panel {
        title: next(),
        x_label: next(),
        y_label: next(),
        y_unit: Unit::Count,
        y_scale: Scale::Log,
        series: kinds.map(|kind| series(next(), kind)).into(),
        marks: vec![Mark { x: 2.0, label: next() }],
        heat: None,
    };
    let quantity = |text: String| Quantity::new(text, [1e6]);
    let check = Check::within(&next(), quantity(next()), quantity(next()), 0.25);
    Page {
        against: ReferenceKind::Paper,
        title: next(),
        intro: vec![next()],
        remarks: vec![next()],
        facts: vec![(next(), next())],
        checks: vec![check.with_note(next())],
        figures: vec![Figure { id: next(), title: next(), caption: next(), panels: vec![panel] }],
        tables: vec![DataTable {
            id: next(),
            title: next(),
            caption: next(),
            head: vec![next(), next()],
            rows: vec![vec![next(), next()]],
        }],
        machines: vec![MachineTable {
            name: next(),
            about: next(),
            constants: vec![Constant { name: next(), value: next(), origin: next() }],
        }],
    }
}

#[test]
fn every_text_of_the_page_is_there_and_escaped() {
    let html = page_of("<i a=\"x\" b='y'>&").html();
    assert!(!html.contains("<i "), "an element came through");
    assert!(!html.contains("\"x\"") && !html.contains("'y'"), "a quote came through");
    for number in 1..=31 {
        let text = format!("&lt;i a=&quot;x&quot; b=&#39;y&#39;&gt;&amp;{number}");
        // Ids of figures and tables are only ever links.
        let link = format!("-i-a--x--b--y---{number}");
        assert!(html.contains(&text) || html.contains(&link), "text {number} is missing");
    }
}

#[test]
fn page_loads_nothing_and_runs_nothing() {
    let html = page_of("x").html();
    for word in ["http:", "https:", "src=", "url(", "@import", "<script", "<link", "javascript:"] {
        assert!(!html.contains(word), "{word}");
    }
    assert!(html.contains("default-src 'none'"));
}

#[test]
fn same_page_gives_the_same_bytes() {
    let (one, two) = (page_of("x"), page_of("x"));
    assert_eq!((one.html(), one.text(), one.json()), (two.html(), two.text(), two.json()));
}

#[test]
fn elements_are_closed_in_order() {
    let html = page_of("x").html();
    let mut open: Vec<&str> = Vec::new();
    for piece in html.split('<').skip(1) {
        let tag = piece.split('>').next().unwrap();
        let name = tag.split([' ', '\n']).next().unwrap();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{piece}"),
            None if tag.ends_with('/') || ["!doctype", "meta"].contains(&name) => {}
            None => open.push(name),
        }
    }
    assert_eq!(open, [""; 0]);
}

#[test]
fn json_has_the_checks_with_their_fields_and_the_figures() {
    let mut page = page_of("x");
    page.checks.push(Check::not_yet("later", CheckKind::OrderOnly, Quantity::default()));
    let json: serde_json::Value = serde_json::from_str(&page.json()).unwrap();
    let check = json["checks"][0].as_object().unwrap();
    let keys: Vec<&str> = check.keys().map(String::as_str).collect();
    let mut expected = ["id", "kind", "paper", "ours", "deviation", "holds", "note"];
    expected.sort_unstable();
    let mut sorted = keys;
    sorted.sort_unstable();
    assert_eq!(sorted, expected);
    assert_eq!(check["kind"], "quantitative");
    assert_eq!(check["paper"]["numbers"][0], 1e6);
    assert_eq!((&check["deviation"], &check["holds"]), (&0.0.into(), &true.into()));
    let later = &json["checks"][1];
    assert_eq!((&later["kind"], &later["holds"]), (&"order only".into(), &"not there yet".into()));
    assert!(later["deviation"].is_null());
    let series = &json["figures"][0]["panels"][0]["series"];
    assert_eq!(series[2]["kind"], "prediction");
    assert_eq!(series[0]["points"][1], serde_json::json!([2.0, 1.6e6]));
}

#[test]
fn text_has_x_down_and_series_across() {
    let text = page_of("x").text();
    let row = text.lines().find(|line| line.trim_start().starts_with("2 ")).unwrap();
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["2", "1.6", "1.6", "1.6"]);
    assert!(text.contains(", in M)"), "the unit stands above: {text}");
    assert!(text.contains(
        "1 hold, 0 do not hold, 0 not run (\"not there yet\"); 0 inputs of the model, not counted"
    ));
    assert!(text.lines().all(|line| line == line.trim_end()));
}

#[test]
fn no_line_of_the_text_is_longer_than_100_columns() {
    let mut page = page_of("x");
    let words = "words ".repeat(60);
    let panel = &mut page.figures[0].panels[0];
    panel.title = words.clone();
    let points = || vec![(1.0, 1e3), (2.0, 123_456_789.0)];
    let series = |number| Series::ours(format!("a design with a long name {number}"), points());
    panel.series = (0..9).map(series).collect();
    page.checks[0].note = words.clone();
    page.checks[0].ours.text = words.clone();
    page.tables = vec![DataTable {
        id: "t".into(),
        title: words.clone(),
        caption: String::new(),
        head: vec!["a".into(), words.clone()],
        rows: vec![vec![words.clone(), words]],
    }];
    let text = page.text();
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!((0..9).all(|number| text.contains(&format!("long name {number}"))), "{text}");
    assert!(text.contains("123.457") && text.contains("0.001"), "one unit: {text}");
}

#[test]
fn panels_without_points_or_with_log_zeroes_are_drawn() {
    let mut page = page_of("x");
    let panel = &mut page.figures[0].panels[0];
    panel.series[0].points = vec![(1.0, 0.0), (2.0, f64::NAN), (3.0, 5.0)];
    panel.series[1].points.clear();
    let html = page.html();
    assert!(!html.contains("NaN\"") && !html.contains("inf"), "a place that is no number");
    page.figures[0].panels.clear();
    assert!(page.html().contains("figure"));
}

#[test]
fn deviation_is_that_of_the_number_that_is_farthest_off() {
    assert_eq!(deviation(&[2.0, 4.0, 10.0], &[2.5, 2.0, 11.0]), Some(-0.5));
    assert_eq!(deviation(&[], &[]), None);
    assert_eq!(deviation(&[1.0], &[1.0, 2.0]), None);
    assert_eq!(deviation(&[0.0], &[1.0]), None);
    let quantity = |number| Quantity::new("", [number]);
    assert_eq!(Check::within("x", quantity(1.0), quantity(1.2), 0.25).holds, CheckVerdict::Yes);
    assert_eq!(Check::within("x", quantity(1.0), quantity(1.3), 0.25).holds, CheckVerdict::No);
    assert_eq!(
        Check::within("x", quantity(1.0), Quantity::default(), 0.25).holds,
        CheckVerdict::No
    );
}

#[test]
fn tally_counts_inputs_apart() {
    let check = |kind, holds: CheckVerdict| Check::new("x", kind, Default::default(), holds);
    let checks = vec![
        check(CheckKind::Input, CheckVerdict::Yes),
        check(CheckKind::Qualitative, CheckVerdict::Yes),
        check(CheckKind::OrderOnly, CheckVerdict::No),
        check(CheckKind::Quantitative, CheckVerdict::NotYet),
    ];
    let tally = Page { checks, ..Page::default() }.tally();
    assert_eq!(tally, CheckTally { hold: 1, fail: 1, missing: 1, inputs: 1 });
}

#[test]
fn check_shows_the_second_run_and_tables_stay_intact() {
    let mut page = page_of("x");
    page.checks[0].without = Some(AblationResult {
        mechanisms: "near,jitter".into(),
        ours: Quantity::new("found <less>", [7e5]),
        change: Some(-0.3),
        deviation: Some(-0.3),
        holds: CheckVerdict::No,
    });
    let ten = |text: &str| (0..13).map(|at| format!("{text}{at}")).collect::<Vec<_>>();
    let head = ten("interrupted-");
    let rows = vec![ten("value-"), vec!["only a name".into()]];
    page.tables = vec![DataTable::new(("t", "t"), "", head.clone(), rows.clone())];
    let (text, html) = (page.text(), page.html());
    let row = "without near, jitter: found <less> (30 % below ours); does not hold, 30 % below the \
               paper's value";
    let words: Vec<_> = text.split_whitespace().collect();
    assert!(words.join(" ").contains(row), "{text}");
    assert!(html.contains("found &lt;less&gt; <span class=\"change\">-30 % against the above"));
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    for word in head.iter().chain(&rows[0]) {
        assert!(text.split_whitespace().any(|shown| shown == word), "{word}: {text}");
    }
    // The first column stands in front of each part.
    assert!(text.matches("only a name").count() > 1, "{text}");
    let json: serde_json::Value = serde_json::from_str(&page.json()).unwrap();
    let without = &json["checks"][0]["without"];
    assert_eq!((&without["mechanisms"], &without["holds"]), (&"near,jitter".into(), &false.into()));
    assert_eq!(without["ours"]["numbers"][0], 7e5);
}
