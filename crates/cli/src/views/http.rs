//! HTTP for the metrics page: GET and HEAD of five paths, one request per connection. Serves
//! Prometheus's metrics, a dashboard, and the daemon's health.
//!
//! Pure functions from the bytes received so far to a complete response, or to `None` while the
//! request's head is incomplete. Request bodies are ignored.

use serde_json::{Map, Value};

use super::history::KEPT_S;
use super::requests::{HISTORY, STATS};
use super::{Answers, StatsQuery};

/// URL query strings by which a client asks for all volumes, idle ones included.
const ALL: [&str; 4] = ["all", "all=", "all=1", "all=true"];

const HEAD_BYTES_MAX: usize = 8 * 1024;
const HEADERS_MAX: usize = 64;
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const DASHBOARD: &str = include_str!("dashboard.html");
/// Content security policy: the page runs only its own script and connects only to this server, so
/// that a drive's name cannot inject code.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Returns the response to the received bytes, or `None` if the request is incomplete.
pub fn answer(input: &[u8], answers: &dyn Answers) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(input) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if input.len() <= HEAD_BYTES_MAX => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Some(problem("431 Request Header Fields Too Large"));
        }
        Err(_) => return Some(problem("400 Bad Request")),
    }
    let head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Some(problem("405 Method Not Allowed\r\nAllow: GET, HEAD")),
    };
    let target = request.path.unwrap_or("/").split('#').next().unwrap_or("/");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let has = |words: &[&str]| query.split('&').any(|word| words.contains(&word));
    let stats_query = StatsQuery { all: has(&ALL) };
    let mut response = match path {
        "/metrics" => response("200 OK", METRICS_TYPE, &answers.metrics(stats_query)),
        "/stats.json" => {
            let all = stats_query.all.then(|| ("all".to_owned(), true.into()));
            json(answers, STATS.name, Map::from_iter(all))
        }
        "/history.json" => match history_arguments(query) {
            Some(arguments) => json(answers, HISTORY.name, arguments),
            None => wrong_query(&format!("seconds must be a whole number from 1 to {KEPT_S}")),
        },
        "/healthz" => match query {
            "" => health(&answers.problems(), "200 OK"),
            "strict" | "strict=1" => health(&answers.problems(), "503 Service Unavailable"),
            _ => wrong_query("use /healthz or /healthz?strict"),
        },
        "/" => response("200 OK", HTML, DASHBOARD),
        _ => problem("404 Not Found"),
    };
    if head && let Some(end) = response.windows(4).position(|four| four == b"\r\n\r\n") {
        response.truncate(end + 4);
    }
    Some(response)
}

fn history_arguments(query: &str) -> Option<Map<String, Value>> {
    if query.is_empty() {
        return Some(Map::new());
    }
    let seconds = query.strip_prefix("seconds=")?.parse::<usize>().ok();
    let seconds = seconds.filter(|seconds| (1..=KEPT_S).contains(seconds))?;
    Some(Map::from_iter([("seconds".to_owned(), seconds.into())]))
}

fn wrong_query(text: &str) -> Vec<u8> {
    response("400 Bad Request", PLAIN, &format!("{text}\n"))
}

fn json(answers: &dyn Answers, verb: &str, arguments: Map<String, Value>) -> Vec<u8> {
    let question = answers.ask(verb, arguments);
    match question.and_then(|question| (question.answer)()) {
        Ok(answer) => response("200 OK", "application/json", &answer.to_string()),
        Err(_) => problem("500 Internal Server Error"),
    }
}

/// Returns the health page. `degraded` is the HTTP status if a drive is in trouble: 200 by default,
/// because a daemon that answers counts as healthy, or 503 in strict mode.
fn health(problems: &[String], degraded: &str) -> Vec<u8> {
    match problems {
        [] => response("200 OK", PLAIN, "ok\n"),
        problems => response(degraded, PLAIN, &format!("degraded: {}\n", problems.join("; "))),
    }
}

fn problem(status: &str) -> Vec<u8> {
    let text = status.lines().next().unwrap_or(status);
    let paths = "not found; use /, /metrics, /stats.json, /history.json or /healthz";
    response(status, PLAIN, &format!("{text}; {paths}\n"))
}

fn response(status: &str, kind: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Content-Security-Policy: {POLICY}\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n\
         {body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::{Question, Refusal};
    use proptest::prelude::*;

    struct FixedAnswers;

    impl Answers for FixedAnswers {
        fn greeting(&self) -> Value {
            Value::Null
        }

        fn ask(&self, _verb: &str, _arguments: Map<String, Value>) -> Result<Question, Refusal> {
            let answer = Box::new(|| Ok(serde_json::json!({ "uptime_ns": 1 })));
            Ok(Question { changes: false, takes_long: false, answer })
        }

        fn metrics(&self, query: StatsQuery) -> String {
            if query.all { "up 1\nall 1\n" } else { "up 1\n" }.to_owned()
        }
    }

    fn text(request: &str) -> String {
        String::from_utf8(answer(request.as_bytes(), &FixedAnswers).expect("an answer")).unwrap()
    }

    #[test]
    fn metrics_are_served_whole_with_type_and_length() {
        let text = text("GET /metrics?x HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4;"));
        assert!(text.contains("\r\nContent-Length: 5\r\n") && text.ends_with("\r\n\r\nup 1\n"));
    }

    #[test]
    fn idle_volumes_are_asked_for_by_a_word_of_the_query() {
        let has_all = |path: &str| text(&format!("GET {path} HTTP/1.1\r\n\r\n")).contains("all 1");
        for path in ["/metrics?all", "/metrics?x&all=1", "/metrics?all=#top"] {
            assert!(has_all(path), "{path}");
        }
        for path in ["/metrics", "/metrics?", "/metrics?all=0", "/metrics?ball", "/metrics#?all"] {
            assert!(!has_all(path), "{path}");
        }
    }

    #[test]
    fn the_dashboard_and_what_it_shows_are_served() {
        let page = text("GET / HTTP/1.1\r\n\r\n");
        assert!(page.contains("\r\nContent-Type: text/html; ") && page.ends_with("</script>\n"));
        assert!(page.contains("\r\nContent-Security-Policy: default-src 'none'; "));
        // Nothing from elsewhere.
        assert!(!page.contains("://"), "the page names another server");
        for page in ["stats.json", "history.json?seconds=9"] {
            let text = text(&format!("GET /{page} HTTP/1.1\r\n\r\n"));
            assert!(text.ends_with("\r\n\r\n{\"uptime_ns\":1}"), "{text}");
        }
    }

    #[test]
    fn health_names_failing_drives_and_fails_strict_checks_only() {
        let text = text("GET /healthz HTTP/1.1\r\n\r\n");
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nok\n"),
            "{text}"
        );
        let problems = ["drive d1: 25 failed requests in the last minute", "drive d2: no server"];
        let line = "\r\n\r\ndegraded: drive d1: 25 failed requests in the last minute; drive d2: no \
                    server\n";
        for status in ["200 OK", "503 Service Unavailable"] {
            let answer = health(&problems.map(str::to_owned), status);
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{answer}");
            assert!(answer.ends_with(line), "{answer}");
        }
        assert!(health(&[], "503 Service Unavailable").starts_with(b"HTTP/1.1 200 OK\r\n"));
    }

    #[test]
    fn queries_that_make_no_sense_are_refused_with_what_to_write() {
        let answer = |path: &str| text(&format!("GET {path} HTTP/1.1\r\n\r\n"));
        let queries =
            ["seconds=0", "seconds=3601", "seconds=-1", "seconds=", "second=9", "x&seconds=9"];
        for query in queries {
            let text = answer(&format!("/history.json?{query}"));
            let end = "\r\n\r\nseconds must be a whole number from 1 to 3600\n";
            assert!(text.starts_with("HTTP/1.1 400 ") && text.ends_with(end), "{query}: {text}");
        }
        for path in ["/history.json", "/history.json?", "/history.json?seconds=3600"] {
            assert!(answer(path).starts_with("HTTP/1.1 200 "), "{path}");
        }
        for path in ["/healthz?strict", "/healthz?strict=1", "/healthz?"] {
            assert!(answer(path).ends_with("\r\n\r\nok\n"), "{path}");
        }
        for path in ["/healthz?strict=0", "/healthz?strikt", "/healthz?x&strict"] {
            assert!(answer(path).starts_with("HTTP/1.1 400 "), "{path}");
        }
    }

    #[test]
    fn head_has_the_length_and_no_body() {
        let text = text("HEAD /metrics HTTP/1.0\r\n\r\n");
        assert!(text.contains("Content-Length: 5") && text.ends_with("\r\n\r\n"), "{text}");
    }

    #[test]
    fn what_is_not_served_is_refused_by_its_status() {
        assert!(text("GET /x HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        let text_405 = text("POST /metrics HTTP/1.1\r\n\r\n");
        assert!(text_405.starts_with("HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\n"));
        assert!(text("\u{1}\u{2}\r\n\r\n").starts_with("HTTP/1.1 400 "));
        let long = format!("GET /{}", "a".repeat(HEAD_BYTES_MAX));
        assert!(text(&long).starts_with("HTTP/1.1 431 "));
        assert_eq!(answer(b"GET /metrics HTTP/1.1\r\nHost:", &FixedAnswers), None);
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_response_or_wait(bytes in prop::collection::vec(any::<u8>(), 1..400)) {
            if let Some(response) = answer(&bytes, &FixedAnswers) {
                prop_assert!(response.starts_with(b"HTTP/1.1 "));
            }
        }
    }
}
