//! A small HTTP client for tests: whole replies, event streams line by line, and raw sockets for what no proper client sends.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;
use ureq::{Agent, Body, http::Response};

/// No reply takes this long, not even a long prefill on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// A whole reply.
#[derive(Debug, Clone)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Headers with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub text: String,
}

impl Reply {
    /// The body as JSON.
    ///
    /// # Panics
    /// When it is not JSON.
    pub fn json(&self) -> Value {
        match serde_json::from_str(&self.text) {
            Ok(value) => value,
            Err(error) => panic!("{} {}: {error}", self.status, self.text),
        }
    }

    /// The body of a 200 as JSON.
    ///
    /// # Panics
    /// When the status is another one.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }

    /// The message of an error in OpenAI's shape.
    ///
    /// # Panics
    /// When the status or the shape is another one.
    pub fn error(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.text);
        let error = &self.json()["error"];
        for key in ["type", "param", "code"] {
            assert!(error.get(key).is_some(), "no {key} in {error}");
        }
        match error["message"].as_str() {
            Some(message) => message.to_string(),
            None => panic!("no message in {error}"),
        }
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// A line of an event stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Sse {
    /// A comment: a sign of life.
    Comment(String),
    /// A JSON object.
    Data(Value),
    /// The end mark `[DONE]`.
    Done,
}

/// An open event stream. Dropping it closes the connection.
pub struct EventStream(BufReader<Box<dyn Read + Send>>);

impl Iterator for EventStream {
    type Item = Sse;

    fn next(&mut self) -> Option<Sse> {
        loop {
            // Bytes first: a line that is not UTF-8 must fail here, not be repaired.
            let mut line = Vec::new();
            match self.0.read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => panic!("the stream broke: {error}"),
            }
            let line = match std::str::from_utf8(&line) {
                Ok(line) => line.trim_end_matches(['\r', '\n']),
                Err(error) => panic!("a line is not UTF-8: {error}: {line:?}"),
            };
            if line.is_empty() {
                continue;
            }
            if let Some(comment) = line.strip_prefix(':') {
                return Some(Sse::Comment(comment.trim().to_string()));
            }
            let Some(data) = line.strip_prefix("data:").map(str::trim) else {
                panic!("an unexpected line: {line}");
            };
            if data == "[DONE]" {
                return Some(Sse::Done);
            }
            match serde_json::from_str(data) {
                Ok(value) => return Some(Sse::Data(value)),
                Err(error) => panic!("{error} in {data}"),
            }
        }
    }
}

/// The chunks of a stream that ended well.
///
/// # Panics
/// When it does not end with `[DONE]`, or something follows that.
pub fn chunks(stream: EventStream) -> Vec<Value> {
    let mut lines: Vec<Sse> = stream.collect();
    assert_eq!(lines.pop(), Some(Sse::Done), "the stream ends with [DONE]");
    lines
        .into_iter()
        .filter_map(|line| match line {
            Sse::Comment(_) => None,
            Sse::Data(value) => Some(value),
            Sse::Done => panic!("[DONE] before the end"),
        })
        .collect()
}

/// The text of all chat or completion chunks.
pub fn text_of(chunks: &[Value]) -> String {
    chunks
        .iter()
        .flat_map(|chunk| chunk["choices"].as_array().into_iter().flatten())
        .filter_map(|choice| {
            let delta = choice["delta"]["content"].as_str();
            delta.or_else(|| choice["text"].as_str())
        })
        .collect()
}

/// A client of one server.
#[derive(Debug, Clone)]
pub struct Client {
    address: SocketAddr,
    key: Option<String>,
    agent: Agent,
}

impl Client {
    /// A client of the server at `address`.
    pub fn new(address: SocketAddr) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_global(Some(PATIENCE))
            // A connection of its own for every request, so that what a test does to one cannot touch another.
            .max_idle_connections(0)
            .build();
        Self {
            address,
            key: None,
            agent: config.into(),
        }
    }

    /// The same client with an API key.
    pub fn with_key(mut self, key: &str) -> Self {
        self.key = Some(key.to_string());
        self
    }

    /// Where the server is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `GET path`.
    ///
    /// # Panics
    /// When no reply comes.
    pub fn get(&self, path: &str) -> Reply {
        self.get_with(path, &[])
    }

    /// `GET path` with further headers.
    ///
    /// # Panics
    /// When no reply comes.
    pub fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = self.agent.get(format!("http://{}{path}", self.address));
        for (name, value) in self.headers(headers) {
            request = request.header(name, value);
        }
        match request.call() {
            Ok(response) => whole(response),
            Err(error) => panic!("GET {path}: {error}"),
        }
    }

    /// `POST path` with a JSON body.
    ///
    /// # Panics
    /// When no reply comes.
    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_bytes(path, body.to_string().as_bytes(), &[])
    }

    /// `POST path` with any body and further headers.
    ///
    /// # Panics
    /// When no reply comes.
    pub fn post_bytes(&self, path: &str, body: &[u8], headers: &[(&str, &str)]) -> Reply {
        match self.send(path, body, headers) {
            Ok(response) => whole(response),
            Err(error) => panic!("POST {path}: {error}"),
        }
    }

    fn send(
        &self,
        path: &str,
        body: &[u8],
        headers: &[(&str, &str)],
    ) -> Result<Response<Body>, ureq::Error> {
        let mut request = self.agent.post(format!("http://{}{path}", self.address));
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in self.headers(headers) {
            request = request.header(name, value);
        }
        request.send(body)
    }

    fn headers<'a>(&self, further: &[(&'a str, &str)]) -> Vec<(&'a str, String)> {
        let key = self.key.as_ref();
        further
            .iter()
            .map(|(name, value)| (*name, (*value).to_string()))
            .chain(key.map(|key| ("authorization", format!("Bearer {key}"))))
            .collect()
    }

    /// `POST path` with `"stream": true` set in the body.
    ///
    /// # Panics
    /// When the reply is no event stream.
    pub fn stream(&self, path: &str, body: &Value) -> EventStream {
        let mut body = body.clone();
        body["stream"] = true.into();
        let response = match self.send(path, body.to_string().as_bytes(), &[]) {
            Ok(response) => response,
            Err(error) => panic!("POST {path}: {error}"),
        };
        let kind = response.headers().get("content-type").cloned();
        if response.status() != 200 || kind.is_none_or(|kind| kind != "text/event-stream") {
            panic!("no event stream: {:?}", whole(response));
        }
        EventStream(BufReader::new(Box::new(response.into_body().into_reader())))
    }

    /// The answer to a chat request.
    ///
    /// # Panics
    /// When there is none.
    pub fn chat(&self, body: &Value) -> Value {
        self.post("/v1/chat/completions", body).ok()
    }

    /// The text of the answer to a chat request.
    ///
    /// # Panics
    /// When there is none.
    pub fn chat_text(&self, body: &Value) -> String {
        let reply = self.chat(body);
        match reply["choices"][0]["message"]["content"].as_str() {
            Some(text) => text.to_string(),
            None => panic!("no text in {reply}"),
        }
    }

    /// The answer to a completion request.
    ///
    /// # Panics
    /// When there is none.
    pub fn complete(&self, body: &Value) -> Value {
        self.post("/v1/completions", body).ok()
    }

    /// One number of `/health`.
    ///
    /// # Panics
    /// When it is not there.
    pub fn health(&self, field: &str) -> u64 {
        let health = self.get("/health").ok();
        match health[field].as_u64() {
            Some(value) => value,
            None => panic!("no {field} in {health}"),
        }
    }

    /// Waits until a number of `/health` has this value.
    ///
    /// # Panics
    /// When it never has.
    pub fn wait_for_health(&self, field: &str, value: u64) {
        let started = std::time::Instant::now();
        while self.health(field) != value {
            assert!(
                started.elapsed() < PATIENCE,
                "{field} did not become {value}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Opens a connection and sends `bytes`.
    ///
    /// # Panics
    /// When there is no connection.
    pub fn connect(&self, bytes: &[u8]) -> TcpStream {
        let connected = TcpStream::connect(self.address).and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(bytes)?;
            Ok(stream)
        });
        match connected {
            Ok(stream) => stream,
            Err(error) => panic!("cannot talk to {}: {error}", self.address),
        }
    }

    /// Sends a request that says `connection: close`, and returns all that comes back.
    ///
    /// # Panics
    /// When there is no connection or no end.
    pub fn raw(&self, bytes: &[u8]) -> String {
        let mut answer = Vec::new();
        match self.connect(bytes).read_to_end(&mut answer) {
            Ok(_) => String::from_utf8_lossy(&answer).into_owned(),
            Err(error) => panic!("no whole answer: {error}"),
        }
    }

    /// Sends `bytes` that may be no request at all, says that no more will come, and returns what comes back: nothing when the server
    /// just hangs up.
    pub fn raw_broken_off(&self, bytes: &[u8]) -> String {
        let Ok(mut stream) = TcpStream::connect(self.address) else {
            return String::new();
        };
        // The server may have answered and hung up before it was sent everything: both are its right.
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// The bytes of a JSON post as it goes over the wire.
pub fn post_bytes(path: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn whole(mut response: Response<Body>) -> Reply {
    let headers = response
        .headers()
        .iter()
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_string(), value)
        })
        .collect();
    let status = response.status().as_u16();
    match response.body_mut().read_to_string() {
        Ok(text) => Reply {
            status,
            headers,
            text,
        },
        Err(error) => panic!("the reply broke off: {error}"),
    }
}
