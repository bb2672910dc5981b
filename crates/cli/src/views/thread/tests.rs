//! Tests of the thread over real sockets: hostile, slow and many clients, and its end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::*;
use crate::views::metrics_listener::BoundAddress;
use crate::views::session::PATIENCE;
use crate::views::{Question, Refusal, StatsQuery};

/// Answers `stats` with a long value and `version` with a short one.
struct FixedAnswers;

impl Answers for FixedAnswers {
    fn greeting(&self) -> Value {
        json!({ "control": 1 })
    }

    fn ask(&self, verb: &str, _arguments: Map<String, Value>) -> Result<Question, Refusal> {
        let answer = match verb {
            "version" => json!("short"),
            _ => json!("x".repeat(4 << 20)),
        };
        let answer = Box::new(|| Ok(answer));
        Ok(Question { changes: false, takes_long: false, answer })
    }

    fn metrics(&self, _query: StatsQuery) -> String {
        "up 1\n".to_owned()
    }
}

struct Served {
    _views: ViewThread,
    path: PathBuf,
    http: std::net::SocketAddr,
    metrics: Arc<MetricsListener>,
    _dir: tempfile::TempDir,
}

fn serve() -> Served {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c");
    let bound = BoundAddress::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let http = bound.real();
    let metrics = Arc::new(MetricsListener::new(Some(bound)).unwrap());
    let control = Some(UnixSocket::bind_with(&path, &Default::default()).unwrap());
    let admins = AllowedPeers {
        users: vec![rustix::process::geteuid().as_raw()],
        ..AllowedPeers::default()
    };
    let sockets = Sockets { control, admins, metrics: Arc::clone(&metrics) };
    let _views = ViewThread::start(sockets, Arc::new(FixedAnswers)).unwrap();
    Served { _views, path, http, metrics, _dir: dir }
}

impl Served {
    fn connect(&self) -> BufReader<UnixStream> {
        let socket = UnixStream::connect(&self.path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        BufReader::new(socket)
    }

    fn greeted(&self) -> BufReader<UnixStream> {
        let mut client = self.connect();
        assert_eq!(line(&mut client)["control"], 1);
        client
    }
}

fn line(client: &mut BufReader<UnixStream>) -> Value {
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

fn ask(client: &mut BufReader<UnixStream>, request: &[u8]) -> Value {
    client.get_mut().write_all(request).unwrap();
    line(client)
}

#[test]
fn requests_are_answered_in_order_even_from_one_piece() {
    let served = serve();
    let mut client = served.greeted();
    let request = |id| format!("{{\"verb\":\"version\",\"id\":{id}}}\n");
    let many: String = (0..100).map(request).collect();
    client.get_mut().write_all(many.as_bytes()).unwrap();
    (0..100).for_each(|id| assert_eq!(line(&mut client), json!({"id": id, "ok": "short"})));
}

#[test]
fn a_client_that_ends_its_side_gets_its_answer() {
    let served = serve();
    let mut client = served.greeted();
    client.get_mut().write_all(b"{\"verb\":\"version\"}\n").unwrap();
    client.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(line(&mut client)["ok"], "short");
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

#[test]
fn long_reply_arrives_whole_while_others_are_served() {
    let served = serve();
    let (mut slow, mut other) = (served.greeted(), served.greeted());
    slow.get_mut().write_all(b"{\"verb\":\"stats\"}\n").unwrap();
    assert_eq!(ask(&mut other, b"{\"verb\":\"version\"}\n")["ok"], "short");
    assert_eq!(line(&mut slow)["ok"].as_str().unwrap().len(), 4 << 20);
}

#[test]
fn a_line_without_end_is_refused_and_the_client_dropped() {
    let served = serve();
    let mut client = served.greeted();
    // The socket may be closed before all of it is sent.
    let _ = client.get_mut().write_all(&vec![b'x'; 80_000]);
    assert_eq!(line(&mut client)["error"]["kind"], "bad-request");
    assert!(!matches!(client.read(&mut [0]), Ok(1)));
}

#[test]
fn hostile_bytes_are_refused_line_by_line() {
    let served = serve();
    let mut client = served.greeted();
    let reply = ask(&mut client, b"\xff\xfe\x00{]\n");
    assert_eq!(reply["error"]["kind"], "bad-request");
    assert_eq!(ask(&mut client, b"{\"verb\":\"version\"}\n")["ok"], "short");
}

#[test]
fn excess_clients_are_told_so_until_there_is_room() {
    let served = serve();
    let clients: Vec<_> = (0..CLIENTS_MAX).map(|_| served.greeted()).collect();
    assert_eq!(line(&mut served.connect())["error"]["kind"], "busy");
    drop(clients);
    let again = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        line(&mut served.connect()).get("control").is_some()
    });
    assert!(again);
}

#[test]
fn request_without_an_end_is_dropped_and_others_stay() {
    let served = serve();
    let mut idle = served.greeted();
    let mut half = served.greeted();
    let mut http = TcpStream::connect(served.http).unwrap();
    http.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let start = Instant::now();
    while start.elapsed() < PATIENCE + Duration::from_millis(300) {
        // A byte now and then buys no more time.
        let _ = half.get_mut().write_all(b"{");
        let _ = http.write_all(b"G");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!matches!(half.read(&mut [0]), Ok(1)));
    assert!(!matches!(http.read(&mut [0]), Ok(1)));
    assert_eq!(ask(&mut idle, b"{\"verb\":\"version\"}\n")["ok"], "short");
}

#[test]
fn metrics_are_served_beside_it() {
    let served = serve();
    let mut client = TcpStream::connect(served.http).unwrap();
    // The request comes in two pieces.
    client.write_all(b"GET /metrics HT").unwrap();
    std::thread::sleep(Duration::from_millis(20));
    client.write_all(b"TP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("up 1\n"), "{text}");
}

#[test]
fn the_metrics_page_moves_and_its_former_address_is_free() {
    let served = serve();
    let elsewhere = BoundAddress::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let new = elsewhere.real();
    served.metrics.replace(Some(elsewhere));
    let mut client = TcpStream::connect(new).unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert!(text.ends_with("up 1\n"), "{text}");
    assert!(TcpStream::connect(served.http).is_err());
    served.metrics.replace(None);
    let is_closed = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        TcpStream::connect(new).is_err()
    });
    assert!(is_closed);
}

#[test]
fn connections_that_ask_for_nothing_keep_no_page_from_others() {
    let served = serve();
    let idle: Vec<TcpStream> = (0..3 * CLIENTS_MAX)
        .map(|_| {
            let mut socket = TcpStream::connect(served.http).unwrap();
            socket.write_all(b"GET /st").unwrap();
            socket
        })
        .collect();
    for _ in 0..10 {
        let mut socket = TcpStream::connect(served.http).unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut page = String::new();
        socket.read_to_string(&mut page).unwrap();
        assert!(page.ends_with("up 1\n"), "{page}");
    }
    drop(idle);
}

#[test]
fn dropping_it_ends_the_thread_and_removes_the_socket() {
    let served = serve();
    let Served { _views: views, path, _dir: dir, .. } = served;
    drop(views);
    assert!(!path.exists());
    drop(dir);
}
