//! The seeds of the fuzz targets and small mutations, sent to a running service: each gets an answer or a closed
//! connection, and other clients are served.

use std::io::Write;
use std::net::Shutdown;

use serde_json::Value;

use crate::hostile::{POLICY, PROTOCOLS, others_are_served};
use crate::kit::Running;
use crate::seeds;

/// What is made of each seed.
const MUTANTS: usize = 40;

/// Numbers that are the same in each run.
struct Luck(u64);

impl Luck {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let most = u64::try_from(most.max(1)).expect("a number");
        usize::try_from(self.0 % most).expect("a number")
    }

    /// Something like a seed: bytes of it turned, cut, repeated, or followed by a part of another.
    fn mutant(&mut self, seeds: &[(String, Vec<u8>)], number: usize) -> Vec<u8> {
        let mut bytes = seeds[number].1.clone();
        for _ in 0..=self.below(3) {
            let place = self.below(bytes.len());
            match self.below(5) {
                0 if !bytes.is_empty() => bytes[place] ^= 1 << self.below(8),
                1 => bytes.truncate(place),
                2 => bytes.extend_from_within(place..),
                3 => bytes.insert(place, b"\r\n\0*$:0{}[\"\xff"[self.below(12)]),
                _ => {
                    let other = &seeds[self.below(seeds.len())].1;
                    bytes.extend(&other[self.below(other.len())..]);
                }
            }
        }
        bytes
    }
}

/// Every seed, and some of what is near it.
fn each(target: &str, mut say: impl FnMut(&[u8])) {
    let seeds = seeds::of(target);
    let mut luck = Luck(0x9e37_79b9_7f4a_7c15);
    for (number, (_, seed)) in seeds.iter().enumerate() {
        say(seed);
        for _ in 0..MUTANTS {
            say(&luck.mutant(&seeds, number));
        }
    }
}

#[test]
fn whatever_is_said_has_an_answer_or_an_end() {
    let running = Running::new(POLICY, |_| {});
    for (target, protocol) in ["resp", "http"].into_iter().zip(&PROTOCOLS) {
        each(target, |said| {
            let mut client = (protocol.connect)(&running);
            // In two parts. It may be closed before all is said.
            let (first, second) = said.split_at(said.len() / 2);
            let _ = client.0.write_all(first);
            let _ = client.0.write_all(second);
            let _ = client.0.shutdown(Shutdown::Write);
            let heard = client.bytes();
            let begins: &[&[u8]] = match target {
                "resp" => &[b"+", b"-", b":", b"$", b"*", b"%"],
                _ => &[b"HTTP/1.1 "],
            };
            let is_answer = heard.is_empty() || begins.iter().any(|one| heard.starts_with(one));
            assert!(
                is_answer,
                "{}: {}",
                said.escape_ascii(),
                heard.escape_ascii()
            );
        });
        others_are_served(&running);
    }
}

#[test]
fn whatever_is_posted_has_an_answer_of_json() {
    let running = Running::new(POLICY, |_| {});
    let paths = [
        "/v1/check",
        "/v1/peek",
        "/v1/permits",
        "/v1/settle",
        "/json",
    ];
    each("json", |body| {
        for path in paths {
            let mut client = running.http();
            let length = body.len();
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
            );
            let said = [head.as_bytes(), body].concat();
            client.0.write_all(&said).expect("written");
            let heard = client.rest();
            let status = heard.split(' ').nth(1).unwrap_or_default();
            let known = ["200", "400", "404", "409", "413", "429"];
            assert!(known.contains(&status), "{}: {heard}", body.escape_ascii());
            let (_, answer) = heard.split_once("\r\n\r\n").expect("a body");
            let answer = serde_json::from_str::<Value>(answer);
            assert!(answer.is_ok(), "{}: {heard}", body.escape_ascii());
        }
    });
    others_are_served(&running);
}
