//! A client that speaks HTTP/2 frame by frame, and so need not behave.

use std::sync::Arc;
use std::time::Duration;

use fermata::clock::SystemIds;
use fermata::engine::Engine;
use fermata::rpc::budget::Accounts;
use fermata::server::Server;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::timeout;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
/// The flag of a frame that answers another one.
pub const ACK: u8 = 1;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const CONTINUATION: u8 = 9;
pub const WINDOW_UPDATE: u8 = 8;

/// The flag of the last frame of a stream, and that of headers that are complete.
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// How much may be on its way in either direction.
const BUFFER_BYTES: usize = 16 * 1024 * 1024;

/// A connection to a server of its own on an engine.
pub struct Frames {
    pub io: DuplexStream,
    pub accounts: Accounts,
}

/// What came.
#[derive(Debug)]
pub struct Came {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frames {
    /// A connection that has sent nothing yet.
    pub fn to(engine: &Engine) -> Frames {
        let [only] = Frames::many(engine);
        only
    }

    /// The same to one server.
    pub fn many<const N: usize>(engine: &Engine) -> [Frames; N] {
        let server = Server::new(engine.clone(), Arc::new(SystemIds));
        let accounts = server.accounts();
        let pairs = [(); N].map(|()| duplex(BUFFER_BYTES));
        let (clients, servers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let connections = tokio_stream::iter(servers.into_iter().map(Ok::<_, std::io::Error>));
        tokio::spawn(server.serve(connections, std::future::pending()));
        let mut clients = clients.into_iter();
        [(); N].map(|()| Frames {
            io: clients.next().unwrap(),
            accounts: accounts.clone(),
        })
    }

    /// A connection whose server takes what its settings say: more than HTTP/2 grants at first.
    pub async fn greeted(engine: &Engine) -> Frames {
        let mut greeted = Frames::to(engine);
        greeted.send(&hello()).await;
        greeted.ping().await;
        greeted.send(&frame(SETTINGS, ACK, 0, &[])).await;
        greeted
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.io.write_all(bytes).await.unwrap();
    }

    /// What comes next; `None` at the end of the connection.
    pub async fn next(&mut self) -> Option<Came> {
        let mut head = [0; 9];
        let read = self.io.read_exact(&mut head);
        timeout(Duration::from_secs(60), read).await.unwrap().ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.io.read_exact(&mut payload).await.ok()?;
        Some(Came {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
            payload,
        })
    }

    /// What comes next of one kind, while the connection lives. Other kinds are skipped, but for what ends it.
    pub async fn next_of(&mut self, kind: u8) -> Came {
        loop {
            let came = self.next().await.unwrap();
            if came.kind == kind {
                return came;
            }
            let words = String::from_utf8_lossy(&came.payload);
            assert_ne!(came.kind, GOAWAY, "{words}");
        }
    }

    /// Returns once all that was sent was read, with what came meanwhile. The connection lives.
    pub async fn ping(&mut self) -> Vec<Came> {
        self.send(&frame(PING, 0, 0, b"thereyet")).await;
        let mut all = Vec::new();
        loop {
            let came = self.next().await.unwrap();
            match (came.kind, came.flags) {
                (PING, ACK) => return all,
                // A server that asks whether somebody is there ends the connection without an answer.
                (PING, _) => self.send(&frame(PING, ACK, 0, &came.payload)).await,
                _ => {}
            }
            let words = String::from_utf8_lossy(&came.payload);
            assert_ne!(came.kind, GOAWAY, "{words}");
            all.push(came);
        }
    }
}

/// An HTTP/2 frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// What a connection begins with.
pub fn hello() -> Vec<u8> {
    hello_with(&[])
}

/// The same of a client that takes so many bytes of each answer, before it says more.
pub fn hello_with_window(bytes: u32) -> Vec<u8> {
    let mut setting = vec![0, 4];
    setting.extend(bytes.to_be_bytes());
    hello_with(&setting)
}

fn hello_with(settings: &[u8]) -> Vec<u8> {
    let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    hello.extend(frame(SETTINGS, 0, 0, settings));
    hello
}

/// More of an answer may come; stream 0: of all together.
pub fn window_update(stream: u32, bytes: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

/// The headers of a call of LockService or LockAdmin: :method POST, :scheme http, and literals for :path and content-type.
pub fn headers_of(method: &str) -> Vec<u8> {
    let service = match method.starts_with("List") || method.starts_with("Describe") {
        true => "LockAdmin",
        false => "LockService",
    };
    headers_of_path(&format!("/fermata.v1.{service}/{method}"))
}

/// The same of any call.
pub fn headers_of_path(path: &str) -> Vec<u8> {
    let content = b"application/grpc";
    let mut block = vec![0x83, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    block.extend(path.as_bytes());
    block.extend([0x0f, 0x10, u8::try_from(content.len()).unwrap()]);
    block.extend(content);
    block
}

/// A path in a block of headers, which begins so: to be remembered (0x44) or not (0x04); as it is, or Huffman coded: eight zeros
/// in five bytes each.
pub fn path_of(first: u8, length: usize, is_huffman: bool) -> Vec<u8> {
    assert!(!is_huffman || length.is_multiple_of(5), "{length}");
    let huffman = if is_huffman { 0x80 } else { 0 };
    let mut path = vec![first];
    match length.checked_sub(127) {
        None => path.push(huffman | u8::try_from(length).unwrap()),
        Some(mut left) => {
            path.push(huffman | 127);
            while left > 127 {
                path.push(u8::try_from(left & 127).unwrap() | 128);
                left >>= 7;
            }
            path.push(u8::try_from(left).unwrap());
        }
    }
    let byte = if is_huffman { 0 } else { b'/' };
    path.resize(path.len() + length, byte);
    path
}

/// A call with this block of headers, in frames of so many bytes at most.
pub fn call_in_frames(stream: u32, block: &[u8], cut: usize) -> Vec<u8> {
    let parts = block.chunks(cut);
    let last = parts.len() - 1;
    let mut call = Vec::new();
    for (number, part) in parts.enumerate() {
        let (kind, end) = match number {
            0 => (HEADERS, END_STREAM),
            _ => (CONTINUATION, 0),
        };
        let flags = end | if number == last { END_HEADERS } else { 0 };
        call.extend(frame(kind, flags, stream, part));
    }
    call
}

/// A message as gRPC frames it.
pub fn grpc(message: &impl Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend(message);
    framed
}

/// A whole call.
pub fn call(stream: u32, method: &str, message: &impl Message) -> Vec<u8> {
    let mut call = frame(HEADERS, END_HEADERS, stream, &headers_of(method));
    call.extend(frame(DATA, END_STREAM, stream, &grpc(message)));
    call
}

/// The numbers of so many streams of a client.
pub fn streams(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|number| 2 * number + 1)
}
