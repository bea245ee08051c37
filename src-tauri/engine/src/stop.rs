//! Stop strings: where generated text ends, found while it streams.
//!
//! The text arrives in pieces that know nothing of the stop strings' borders. [`StopStrings`] lets out what is certainly before any
//! stop string and holds back the longest end of the text that could still become one. It is an Aho-Corasick automaton (Aho and Corasick 1975)
//! over bytes: the depth of its state *is* the number of bytes to hold back, and each byte costs constant time on average, however many stop
//! strings there are.
//!
//! The stop string that is complete first wins; of several that are complete with the same byte, the longest, which begins first. How
//! the text was cut into pieces makes no difference.

/// The most stop strings a request can have.
pub const MAX_STOP_STRINGS: usize = 16;
/// The most bytes a stop string can have.
pub const MAX_STOP_BYTES: usize = 4096;

/// Stop strings that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStop {
    /// An empty stop string would match everywhere.
    #[error("stop string {} is empty; leave it out", index + 1)]
    Empty {
        /// Its place in the list, from 0.
        index: usize,
    },
    /// A stop string is too long.
    #[error("stop string {} has {bytes} bytes; at most {MAX_STOP_BYTES} are possible", index + 1)]
    TooLong {
        /// Its place in the list, from 0.
        index: usize,
        /// Its length.
        bytes: usize,
    },
    /// Too many stop strings.
    #[error("there are {count} stop strings; at most {MAX_STOP_STRINGS} are possible")]
    TooMany {
        /// How many there are.
        count: usize,
    },
}

/// What a piece of text led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopPiece {
    /// Text that can be sent now.
    pub text: String,
    /// The stop string that was reached. The text ends before it, and what follows it is dropped.
    pub matched: Option<String>,
}

/// A node of the automaton: what some stop string begins with.
#[derive(Clone, Debug, Default)]
struct Node {
    /// Next nodes by byte. At most one per stop string, so a walk is quick.
    next: Vec<(u8, u32)>,
    /// The node of the longest proper suffix that some stop string begins with.
    fallback: u32,
    /// The length of the text that this node stands for.
    depth: u32,
    /// The length of the longest stop string that the text ends with; 0 when there is none.
    stop_length: u32,
}

impl Node {
    fn step(&self, byte: u8) -> Option<u32> {
        self.next
            .iter()
            .find(|edge| edge.0 == byte)
            .map(|edge| edge.1)
    }
}

/// An incremental matcher over one streamed text.
///
/// ```
/// # use headstart_engine::stop::StopStrings;
/// let mut stops = StopStrings::new(&["\n\nUser:"])?;
/// assert_eq!(stops.push("Hello.\n").text, "Hello.");
/// assert_eq!(stops.push("Bye.\n\nUs").text, "\nBye.");
/// let last = stops.push("er: hi");
/// assert_eq!((last.text.as_str(), last.matched.as_deref()), ("", Some("\n\nUser:")));
/// # Ok::<(), headstart_engine::stop::InvalidStop>(())
/// ```
#[derive(Clone, Debug)]
pub struct StopStrings {
    nodes: Vec<Node>,
    state: u32,
    /// Text that was held back: `depth` of the state's node bytes. Shorter than the longest stop string.
    held: String,
    matched: Option<String>,
}

impl StopStrings {
    /// A matcher at the start of a text. With no stop strings all text passes at once.
    ///
    /// # Errors
    /// An empty or too long stop string, or too many of them.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, InvalidStop> {
        if stops.len() > MAX_STOP_STRINGS {
            return Err(InvalidStop::TooMany { count: stops.len() });
        }
        let mut nodes = vec![Node::default()];
        for (index, stop) in stops.iter().enumerate() {
            let bytes = stop.as_ref().len();
            match bytes {
                0 => return Err(InvalidStop::Empty { index }),
                1..=MAX_STOP_BYTES => insert(&mut nodes, stop.as_ref().as_bytes()),
                _ => return Err(InvalidStop::TooLong { index, bytes }),
            }
        }
        link(&mut nodes);
        Ok(Self {
            nodes,
            state: 0,
            held: String::new(),
            matched: None,
        })
    }

    /// Takes the next piece of text. After a match it has no effect but to report the match again.
    pub fn push(&mut self, piece: &str) -> StopPiece {
        if self.matched.is_some() {
            return StopPiece {
                text: String::new(),
                matched: self.matched.clone(),
            };
        }
        for (index, &byte) in piece.as_bytes().iter().enumerate() {
            self.advance(byte);
            let length = self.node().stop_length as usize;
            if length > 0 {
                let mut text = std::mem::take(&mut self.held);
                // Stop strings and text are valid UTF-8, so a match begins and ends between characters.
                text.push_str(&piece[..=index]);
                let stop = text.split_off(text.len() - length);
                self.matched = Some(stop.clone());
                return StopPiece {
                    text,
                    matched: Some(stop),
                };
            }
        }
        let mut text = std::mem::take(&mut self.held);
        text.push_str(piece);
        self.held = text.split_off(text.len() - self.node().depth as usize);
        StopPiece {
            text,
            matched: None,
        }
    }

    /// Ends the text: what was held back, since it became no stop string.
    pub fn finish(&mut self) -> String {
        self.state = 0;
        std::mem::take(&mut self.held)
    }

    /// The stop string that was reached, if one was.
    pub fn matched(&self) -> Option<&str> {
        self.matched.as_deref()
    }

    fn node(&self) -> &Node {
        &self.nodes[self.state as usize]
    }

    fn advance(&mut self, byte: u8) {
        self.state = successor(&self.nodes, self.state, byte);
    }
}

/// The node of the longest end of (the text of `state`, then `byte`) that some stop string begins with.
fn successor(nodes: &[Node], mut state: u32, byte: u8) -> u32 {
    loop {
        let node = &nodes[state as usize];
        match node.step(byte) {
            Some(next) => return next,
            None if state == 0 => return 0,
            None => state = node.fallback,
        }
    }
}

/// Adds the nodes of one stop string.
fn insert(nodes: &mut Vec<Node>, stop: &[u8]) {
    let mut state = 0_usize;
    for (&byte, depth) in stop.iter().zip(1..) {
        state = match nodes[state].step(byte) {
            Some(next) => next as usize,
            None => {
                let new = nodes.len();
                nodes.push(Node {
                    depth,
                    ..Node::default()
                });
                nodes[state].next.push((byte, new as u32));
                new
            }
        };
    }
    nodes[state].stop_length = stop.len() as u32;
}

/// Fills in the fallbacks, shallow nodes first: a fallback is always shallower.
fn link(nodes: &mut [Node]) {
    let mut queue = vec![0_u32];
    let mut done = 0;
    while let Some(&parent) = queue.get(done) {
        done += 1;
        for (byte, child) in nodes[parent as usize].next.clone() {
            let fallback = match parent {
                0 => 0,
                _ => successor(nodes, nodes[parent as usize].fallback, byte),
            };
            let inherited = nodes[fallback as usize].stop_length;
            let node = &mut nodes[child as usize];
            node.fallback = fallback;
            // A stop string that ends at this node itself is the longest.
            if node.stop_length == 0 {
                node.stop_length = inherited;
            }
            queue.push(child);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stops(list: &[&str]) -> StopStrings {
        StopStrings::new(list).unwrap()
    }

    /// Pushes the pieces; the text let out and the stop string.
    fn run(list: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let mut stops = stops(list);
        let mut text = String::new();
        for piece in pieces {
            text += &stops.push(piece).text;
        }
        text += &stops.finish();
        (text, stops.matched().map(str::to_owned))
    }

    /// The whole text, searched without cleverness.
    fn naive<'a>(list: &'a [String], text: &'a str) -> (&'a str, Option<&'a str>) {
        for end in 1..=text.len() {
            let ending = list
                .iter()
                .filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()));
            if let Some(stop) = ending.max_by_key(|stop| stop.len()) {
                return (&text[..end - stop.len()], Some(stop));
            }
        }
        (text, None)
    }

    /// How many bytes at the end of `text` begin a stop string.
    fn naive_held(list: &[String], text: &str) -> usize {
        let begins = |length: &usize| {
            let end = &text.as_bytes()[text.len() - length..];
            list.iter().any(|stop| stop.as_bytes().starts_with(end))
        };
        (0..=text.len()).rev().find(begins).unwrap_or(0)
    }

    #[test]
    fn text_without_a_stop_passes() {
        assert_eq!(run(&[], &["ab", "c"]), ("abc".into(), None));
        assert_eq!(run(&["xyz"], &["ab", "xy"]), ("abxy".into(), None));
        assert_eq!(stops(&[]).push("all at once").text, "all at once");
    }

    #[test]
    fn a_stop_across_pieces_is_found_and_what_follows_is_dropped() {
        assert_eq!(
            run(&["STOP"], &["go S", "T", "OP on"]),
            ("go ".into(), Some("STOP".into()))
        );
    }

    #[test]
    fn only_what_could_become_a_stop_is_held_back() {
        let mut stops = stops(&["aab"]);
        let mut push = |piece: &str| stops.push(piece).text;
        assert_eq!(
            [push("xa"), push("a"), push("a"), push("c")],
            ["x", "", "a", "aac"]
        );
    }

    #[test]
    fn the_stop_that_is_complete_first_wins() {
        assert_eq!(
            run(&["abc", "ab"], &["xabc"]),
            ("x".into(), Some("ab".into()))
        );
        assert_eq!(
            run(&["abcd", "bc"], &["xabcd"]),
            ("xa".into(), Some("bc".into()))
        );
    }

    #[test]
    fn of_stops_complete_together_the_longest_wins() {
        assert_eq!(
            run(&["c", "bc", "abc"], &["xabc"]),
            ("x".into(), Some("abc".into()))
        );
    }

    #[test]
    fn characters_of_several_bytes_are_never_cut() {
        // The three share their first bytes: é = c3 a9, è = c3 a8; 😀 = f0 9f 98 80, 😁 = f0 9f 98 81.
        assert_eq!(
            run(&["é", "😀"], &["aè", "😁", "b"]),
            ("aè😁b".into(), None)
        );
        assert_eq!(
            run(&["è😁"], &["aè", "😁", "b"]),
            ("a".into(), Some("è😁".into()))
        );
    }

    #[test]
    fn after_a_match_the_matcher_stays_where_it_is() {
        let mut stops = stops(&["x"]);
        assert_eq!(stops.push("axb").text, "a");
        let again = StopPiece {
            text: String::new(),
            matched: Some("x".into()),
        };
        assert_eq!(stops.push("cxd"), again);
        assert_eq!(stops.finish(), "");
        assert_eq!(stops.matched(), Some("x"));
    }

    #[test]
    fn unusable_stop_strings_are_refused() {
        assert_eq!(
            StopStrings::new(&["a", ""]).unwrap_err(),
            InvalidStop::Empty { index: 1 }
        );
        assert_eq!(
            StopStrings::new(&["a"; 17]).unwrap_err(),
            InvalidStop::TooMany { count: 17 }
        );
        assert!(StopStrings::new(&["a"; 16]).is_ok());
        let long = "a".repeat(MAX_STOP_BYTES + 1);
        assert_eq!(
            StopStrings::new(&[&long]).unwrap_err(),
            InvalidStop::TooLong {
                index: 0,
                bytes: 4097
            }
        );
        assert!(StopStrings::new(&[&long[1..]]).is_ok());
    }

    #[test]
    fn messages_count_from_one() {
        let error = StopStrings::new(&["a", ""]).unwrap_err();
        assert_eq!(error.to_string(), "stop string 2 is empty; leave it out");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn every_split_gives_what_a_search_of_the_whole_text_gives(
            list in prop::collection::vec("[abéè😀😁]{1,5}", 0..5),
            pieces in prop::collection::vec("[abéè😀😁]{0,6}", 0..12),
        ) {
            let whole = pieces.concat();
            let (expected, stop) = naive(&list, &whole);
            let mut stops = StopStrings::new(&list).unwrap();
            let (mut text, mut seen) = (String::new(), String::new());
            for piece in &pieces {
                seen += piece;
                let out = stops.push(piece);
                text += &out.text;
                if out.matched.is_some() {
                    break;
                }
                prop_assert_eq!(seen.len() - text.len(), naive_held(&list, &seen));
            }
            text += &stops.finish();
            prop_assert_eq!(text, expected);
            prop_assert_eq!(stops.matched(), stop);
        }
    }
}
