//! Removes unread parts from JSON, byte by byte as it arrives *(no client)*.

use std::mem;

use super::{ALWAYS, IDENTITY, Members, Part, Projection};

/// The longest text that is read. A longer one reads as empty.
const LONGEST_TEXT: usize = 32 << 10;

/// The longest text of a named member that is read although nothing is left for the field. So no decoder misses a name or a
/// phase because a tenant filled another part of the field.
const SHORT_TEXT: usize = 256;

/// What an element, or a member of an object that is read as a whole, counts beside its text. Decoded, even `{}` takes this much.
const OVERHEAD: usize = 64;

/// What is read of the annotations of a bookmark, which are the API server's own: this one ends a list that was streamed.
static BOOKMARKED: Part = Part::Only(&[("k8s.io/initial-events-end", Part::All)]);

/// The state between two pieces of an answer: an object, a list, or the events of a watch one after the other.
///
/// Input is taken for JSON. Invalid input stays invalid, so that the decoder refuses it.
#[derive(Debug)]
pub(super) struct Filter {
    projection: &'static Projection,
    /// What is read of the metadata beside the projection's.
    more: Members,
    /// The containers that are read and not closed yet.
    open: Vec<Open>,
    token: Token,
    /// The name or text that is being read.
    text: Vec<u8>,
    /// Whether a backslash is before the next byte.
    escaped: bool,
    /// How many containers of an omitted value are open.
    depth: usize,
    /// What comes next in an object.
    next: Next,
    /// How much was read of the field, or of its member that is read apart: bytes, and [`OVERHEAD`].
    used: usize,
    /// Whether this is a bookmark among the events of a watch. An API server writes the type of an event before its object.
    is_bookmark: bool,
}

#[derive(Debug)]
struct Open {
    is_object: bool,
    place: Place,
    is_empty: bool,
}

#[derive(Clone, Copy, Debug)]
enum Next {
    Name,
    /// A value that is there, and so is read.
    Value(Place),
    /// One that is left out.
    Nothing,
}

/// The place of a value, which decides which parts of it are read.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// The whole answer: an object, or a list or event with some in it.
    Answer,
    Object,
    Metadata,
    Within(&'static Part),
}

/// What the next byte is in.
#[derive(Clone, Copy, Debug)]
enum Token {
    /// In none.
    Between,
    /// The name of a member.
    Name,
    Text,
    /// A number, or one of JSON's words.
    Word,
    /// A value that is left out.
    Skipped,
    /// A text in one.
    SkippedText,
}

impl Filter {
    pub(super) fn new(projection: &'static Projection, more: Members) -> Self {
        let (open, text) = (Vec::new(), Vec::new());
        let (token, next) = (Token::Between, Next::Name);
        let (escaped, is_bookmark) = (false, false);
        Self { projection, more, open, token, text, escaped, depth: 0, next, used: 0, is_bookmark }
    }

    /// What is read of these bytes.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        loop {
            bytes = &bytes[self.plain(bytes)..];
            let Some((byte, rest)) = bytes.split_first() else { return out };
            let before = out.len();
            self.token = self.step(*byte, &mut out);
            self.used += out.len() - before;
            bytes = rest;
        }
    }

    /// Takes the bytes at the beginning that only lengthen a text or are skipped, and returns how many: most of what is large.
    fn plain(&mut self, bytes: &[u8]) -> usize {
        let until = |end: Option<usize>| end.unwrap_or(bytes.len());
        match self.token {
            Token::SkippedText if !self.escaped => until(memchr::memchr2(b'"', b'\\', bytes)),
            Token::Name | Token::Text if !self.escaped => {
                let end = until(memchr::memchr2(b'"', b'\\', bytes));
                // One more than fit shows that it is too long.
                let room = (LONGEST_TEXT + 1).saturating_sub(self.text.len());
                self.text.extend_from_slice(&bytes[..end.min(room)]);
                end
            }
            Token::Skipped if self.depth > 0 => {
                let is_mark = |byte: &u8| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']');
                until(bytes.iter().position(is_mark))
            }
            _ => 0,
        }
    }

    fn step(&mut self, byte: u8, out: &mut Vec<u8>) -> Token {
        match self.token {
            Token::Between => return self.between(byte, out),
            Token::Name | Token::Text | Token::SkippedText => return self.in_text(byte, out),
            Token::Word if is_end_of_word(byte) => return self.between(byte, out),
            Token::Word => out.push(byte),
            Token::Skipped if self.depth == 0 && is_end_of_word(byte) => return self.between(byte, out),
            Token::Skipped => match byte {
                b'"' => return Token::SkippedText,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth -= 1;
                    return self.after_skipped();
                }
                _ => {}
            },
        }
        self.token
    }

    fn in_text(&mut self, byte: u8, out: &mut Vec<u8>) -> Token {
        match (byte, self.token) {
            (b'"', Token::Name) if !self.escaped => self.end_name(out),
            (b'"', Token::Text) if !self.escaped => self.end_text(out),
            (b'"', Token::SkippedText) if !self.escaped => return self.after_skipped(),
            (byte, token) => {
                self.escaped = byte == b'\\' && !self.escaped;
                // One more than fit shows that it is too long.
                if !matches!(token, Token::SkippedText) && self.text.len() <= LONGEST_TEXT {
                    self.text.push(byte);
                }
                return token;
            }
        }
        Token::Between
    }

    /// After a text or container of an omitted value.
    fn after_skipped(&self) -> Token {
        if self.depth == 0 { Token::Between } else { Token::Skipped }
    }

    fn between(&mut self, byte: u8, out: &mut Vec<u8>) -> Token {
        match byte {
            // Between two events.
            b'\n' if self.open.is_empty() => out.push(byte),
            b' ' | b'\t' | b'\r' | b'\n' | b',' | b':' => {}
            b'}' | b']' => {
                self.open.pop();
                out.push(byte);
            }
            b'"' if matches!(self.next, Next::Name) && self.open.last().is_some_and(|it| it.is_object) => {
                return Token::Name;
            }
            _ => return self.begin(byte, out),
        }
        Token::Between
    }

    /// Begins a value.
    fn begin(&mut self, byte: u8, out: &mut Vec<u8>) -> Token {
        let is_spent = self.used > self.projection.most;
        let place = match self.open.last_mut() {
            None => Some(Place::Answer),
            Some(Open { is_object: true, .. }) => match mem::replace(&mut self.next, Next::Name) {
                Next::Value(place) => Some(place),
                Next::Name | Next::Nothing => None,
            },
            Some(Open { place: Place::Within(_), .. }) if is_spent => None,
            Some(array) => {
                array.separate(out);
                self.used += OVERHEAD;
                Some(array.place)
            }
        };
        let Some(place) = place else {
            self.depth = usize::from(matches!(byte, b'{' | b'['));
            return if byte == b'"' { Token::SkippedText } else { Token::Skipped };
        };
        match byte {
            b'"' => return Token::Text,
            b'{' | b'[' => self.open.push(Open { is_object: byte == b'{', place, is_empty: true }),
            _ => {
                out.push(byte);
                return Token::Word;
            }
        }
        out.push(byte);
        Token::Between
    }

    fn end_name(&mut self, out: &mut Vec<u8>) {
        let place = self.open.last().and_then(|object| self.member(object.place, &self.text));
        if let (Some(place), Some(object)) = (place, self.open.last_mut()) {
            match object.place {
                Place::Within(Part::All) => self.used += OVERHEAD,
                Place::Within(Part::Only(_)) => {}
                Place::Within(Part::Apart(_)) | Place::Answer | Place::Object | Place::Metadata => {
                    self.used = 0;
                }
            }
            object.separate(out);
            write_text(&self.text, out);
            out.push(b':');
            self.next = Next::Value(place);
        } else {
            self.next = Next::Nothing;
        }
        self.text.clear();
    }

    fn end_text(&mut self, out: &mut Vec<u8>) {
        if self.open.len() == 1 {
            self.is_bookmark = self.text == b"BOOKMARK";
        }
        let is_whole = self.text.len() <= self.longest();
        write_text(if is_whole { &self.text } else { &[] }, out);
        self.text.clear();
    }

    /// The longest text that is read now.
    fn longest(&self) -> usize {
        let left = self.projection.most.saturating_sub(self.used);
        left.clamp(SHORT_TEXT, LONGEST_TEXT)
    }

    /// The place of the value of this name, if it is read.
    fn member(&self, place: Place, name: &[u8]) -> Option<Place> {
        let Projection { metadata, rest, most } = *self.projection;
        let is_one_of = |names: &[&str]| names.iter().any(|it| it.as_bytes() == name);
        let among = |members: Members| {
            let found = members.iter().find(|(it, _)| it.as_bytes() == name);
            found.map(|(_, part)| Place::Within(part))
        };
        match place {
            Place::Answer if is_one_of(&["items", "object"]) => Some(Place::Object),
            Place::Answer if is_one_of(&["type"]) => Some(Place::Within(&Part::All)),
            Place::Answer | Place::Object if is_one_of(&["metadata"]) => Some(Place::Metadata),
            Place::Answer | Place::Object if is_one_of(&ALWAYS) => Some(Place::Within(&Part::All)),
            Place::Answer | Place::Object => among(rest),
            Place::Metadata if self.is_bookmark && is_one_of(&["annotations"]) => {
                Some(Place::Within(&BOOKMARKED))
            }
            Place::Metadata if is_one_of(&IDENTITY) => Some(Place::Within(&Part::All)),
            Place::Metadata => among(metadata).or_else(|| among(self.more)),
            Place::Within(Part::Only(members) | Part::Apart(members)) => among(members),
            Place::Within(Part::All) => {
                (self.used <= most && name.len() <= self.longest()).then_some(Place::Within(&Part::All))
            }
        }
    }
}

impl Open {
    /// Separates the next element or member from the one before.
    fn separate(&mut self, out: &mut Vec<u8>) {
        if !mem::take(&mut self.is_empty) {
            out.push(b',');
        }
    }
}

fn write_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(text);
    out.push(b'"');
}

fn is_end_of_word(byte: u8) -> bool {
    matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n')
}
