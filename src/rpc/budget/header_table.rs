//! What the table of headers of a connection may keep in memory.
//!
//! HTTP/2 keeps the pseudo-headers (`:path`, `:authority`) that a client has it remember as slices of the buffer that they
//! came in, or were decoded into: whoever sends a hundred paths far from each other has it keep 2 MB. So what goes into the
//! table is followed here, as far as that goes without decoding it (RFC 7541, 6.2): which names begin with a colon, and how
//! much came between. What h2 allocates for it was read in its source (0.4.20), and is bounded here from above:
//!
//! - a frame is a slice of a buffer of 16 KiB;
//! - a block in several frames is copied to a buffer of its own, which doubles as it grows;
//! - strings that are Huffman coded are decoded into a buffer that has twice their length free, and doubles where nobody else
//!   has a part of it. It stays until the connection ends.

use std::collections::VecDeque;

use super::wide;

/// The most that a slice of a frame keeps, in bytes.
pub(super) const BUFFER_BYTES: u64 = 16 * 1024;

/// What the buffer of a block in several frames may have, in times of it.
const TIMES_BLOCK: u64 = 2;

/// What one that strings are decoded into may have, in times of these.
const TIMES_HUFFMAN: u64 = 4;

/// The buffer for strings up to this is a part of what each connection takes; no other one is smaller.
const HUFFMAN_FREE: u64 = 1024;

/// What a field of a block that goes on takes, in bytes, besides its name and value.
const FIELD_BYTES: u64 = 200;

/// What the entries of a table have at most, in bytes, each with so many besides its name and value (RFC 7541, 4.1).
const TABLE_BYTES: u64 = 4_096;
const ENTRY_BYTES: u64 = 32;

/// The longest code of a character, in bits, and the most that a string ends with besides.
const HUFFMAN_BITS_MAX: u64 = 30;
const HUFFMAN_PADDING: u64 = 7;

/// The entries of the static table that are pseudo-headers, and how many it has.
const STATIC_PSEUDO_MAX: usize = 14;
const STATIC_MAX: usize = 61;
/// The shortest name in it.
const STATIC_NAME_MIN: u64 = 3;

/// How `:` begins a name that is Huffman coded: 7 bits.
const HUFFMAN_COLON: u8 = 0x5c;

/// Follows the blocks of headers of a connection.
#[derive(Debug, Default)]
pub(super) struct HeaderTable {
    /// The newest last: all that the table has, and maybe some that were pushed out of it.
    entries: VecDeque<TableEntry>,
    /// What those have at least, in bytes.
    size_min: u64,
    at: At,
    /// What comes into the table with the literal that is being read.
    inserts: Option<Inserts>,
    kept: u64,
    block: Block,
    /// The longest that there was, in bytes.
    block_longest: u64,
    /// What came that is Huffman coded since the last entry that is.
    huffman_since: u64,
    /// The longest string that was.
    huffman_longest: u64,
    /// A name came that is empty.
    had_no_name: bool,
}

/// A block of headers, as far as it came.
#[derive(Debug, Default)]
struct Block {
    bytes: u64,
    /// It goes on in another frame.
    is_open: bool,
    /// It has more than one.
    is_joined: bool,
    /// How many fields came.
    fields: u64,
}

#[derive(Debug, Clone, Copy)]
struct TableEntry {
    is_pseudo: bool,
    keeps: u64,
    /// What its name has at least, and all of it, in bytes.
    name_min: u64,
    size_min: u64,
}

#[derive(Debug, Clone, Copy)]
struct Inserts {
    is_pseudo: bool,
    /// What its name has at least, in bytes.
    name_min: u64,
}

/// What the next byte of a block is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum At {
    /// The first of a field.
    #[default]
    Field,
    /// Of an integer that goes on, of which so much came.
    Integer {
        value: usize,
        shift: u32,
        of: IntegerOf,
    },
    /// The first of the length of a string.
    Length(StringOf),
    /// Of a string of which so much is to come.
    String { left: usize, all: TableString },
}

/// A string of a literal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TableString {
    length: usize,
    is_huffman: bool,
    of: StringOf,
}

impl TableString {
    /// What it has at least once it is decoded, in bytes.
    fn decoded_min(self) -> u64 {
        let length = wide(self.length);
        match self.is_huffman {
            true => length.saturating_mul(8).saturating_sub(HUFFMAN_PADDING) / HUFFMAN_BITS_MAX,
            false => length,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IntegerOf {
    /// An index, or a size, that nothing follows.
    Alone,
    /// The index of the name of a literal.
    Name,
    Length {
        is_huffman: bool,
        of: StringOf,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StringOf {
    Name,
    Value,
}

impl HeaderTable {
    /// What may be kept of blocks, in bytes: by its entries, of a block that goes on, and to decode into.
    pub fn kept(&self) -> u64 {
        let block = match self.block.is_open {
            true => {
                let fields = self.block.fields.saturating_mul(FIELD_BYTES);
                self.joined_bytes().saturating_add(fields)
            }
            false => 0,
        };
        // An entry that is gone may have shared with one that is there what was counted as kept by it.
        let decoder = match self.huffman_longest {
            ..=HUFFMAN_FREE => 0,
            longest => longest.saturating_mul(2 * TIMES_HUFFMAN),
        };
        self.kept.saturating_add(block).saturating_add(decoder)
    }

    /// The longest block, as far as it came, in bytes.
    pub fn longest_block(&self) -> u64 {
        self.block_longest
    }

    /// Whether a header had an empty name: in a block that goes on, HTTP/2 waits for more of it, and never remembers it. So
    /// what the table has from there on is not known.
    pub fn had_no_name(&self) -> bool {
        self.had_no_name
    }

    /// A block begins, with a frame of so many bytes; whether another one follows.
    pub fn begin(&mut self, bytes: u64, is_open: bool) {
        self.at = At::Field;
        self.inserts = None;
        self.block_longest = self.block_longest.max(bytes);
        self.block = Block {
            bytes,
            is_open,
            is_joined: false,
            fields: 0,
        };
    }

    /// The block goes on with another frame.
    pub fn go_on(&mut self, bytes: u64, is_open: bool) {
        let bytes = self.block.bytes.saturating_add(bytes);
        self.block_longest = self.block_longest.max(bytes);
        self.block = Block {
            bytes,
            is_open,
            is_joined: true,
            ..self.block
        };
    }

    /// What a block in several frames may be copied to.
    fn joined_bytes(&self) -> u64 {
        let copied = self.block.bytes.saturating_mul(TIMES_BLOCK);
        copied.max(BUFFER_BYTES)
    }

    /// Reads on in a block. `since` is how much came on the connection since the last entry that keeps anything.
    pub fn advance(&mut self, bytes: &[u8], since: &mut u64) {
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            if let At::String { left, all } = self.at {
                if left == all.length && all.of == StringOf::Name {
                    self.note_name(byte, all.is_huffman);
                }
                let count = left.min(rest.len());
                rest = rest.split_at(count).1;
                self.at = match left - count {
                    0 => self.after_string(all, since),
                    left => At::String { left, all },
                };
            } else {
                rest = after;
                self.at = self.after_byte(byte, since);
            }
            self.block.fields += u64::from(self.at == At::Field);
        }
    }

    fn after_byte(&mut self, byte: u8, since: &mut u64) -> At {
        match self.at {
            At::Field => self.field(byte, since),
            At::Length(of) => {
                let is_huffman = byte & 0x80 != 0;
                self.integer(byte, 0x7f, IntegerOf::Length { is_huffman, of }, since)
            }
            At::Integer { value, shift, of } => {
                // No length that HTTP/2 takes is as large: it ends the connection.
                let part = usize::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
                let value = value.saturating_add(part);
                match byte & 0x80 {
                    0 => self.after_integer(value, of, since),
                    _ => At::Integer {
                        value,
                        shift: shift.saturating_add(7),
                        of,
                    },
                }
            }
            // Read by its length.
            At::String { .. } => self.at,
        }
    }

    fn field(&mut self, byte: u8, since: &mut u64) -> At {
        let (prefix, of) = match byte {
            0x80.. => (0x7f, IntegerOf::Alone),
            0x40.. => {
                self.inserts = Some(Inserts {
                    is_pseudo: false,
                    name_min: 0,
                });
                (0x3f, IntegerOf::Name)
            }
            0x20.. => (0x1f, IntegerOf::Alone),
            _ => (0x0f, IntegerOf::Name),
        };
        self.integer(byte, prefix, of, since)
    }

    fn integer(&mut self, byte: u8, prefix: u8, of: IntegerOf, since: &mut u64) -> At {
        let value = byte & prefix;
        if value < prefix {
            return self.after_integer(value.into(), of, since);
        }
        At::Integer {
            value: value.into(),
            shift: 0,
            of,
        }
    }

    fn after_integer(&mut self, value: usize, of: IntegerOf, since: &mut u64) -> At {
        match of {
            IntegerOf::Alone => At::Field,
            IntegerOf::Name if value == 0 => At::Length(StringOf::Name),
            IntegerOf::Name => {
                let (is_pseudo, name_min) = self.named(value);
                if let Some(inserts) = &mut self.inserts {
                    *inserts = Inserts {
                        is_pseudo,
                        name_min,
                    };
                }
                At::Length(StringOf::Value)
            }
            IntegerOf::Length { is_huffman, of } => {
                let all = TableString {
                    length: value,
                    is_huffman,
                    of,
                };
                match value {
                    0 => self.after_string(all, since),
                    left => At::String { left, all },
                }
            }
        }
    }

    fn after_string(&mut self, all: TableString, since: &mut u64) -> At {
        if all.is_huffman {
            let length = wide(all.length);
            self.huffman_since = self.huffman_since.saturating_add(length);
            self.huffman_longest = self.huffman_longest.max(length);
        }
        match all.of {
            StringOf::Name => {
                self.had_no_name |= all.length == 0;
                if let Some(inserts) = &mut self.inserts {
                    inserts.name_min = all.decoded_min();
                }
                At::Length(StringOf::Value)
            }
            StringOf::Value => {
                if let Some(inserts) = self.inserts.take() {
                    self.insert(inserts, all, since);
                }
                At::Field
            }
        }
    }

    fn note_name(&mut self, first: u8, is_huffman: bool) {
        if let Some(inserts) = &mut self.inserts {
            inserts.is_pseudo = match is_huffman {
                true => first >> 1 == HUFFMAN_COLON,
                false => first == b':',
            };
        }
    }

    /// Whether the name with this index is one of a pseudo-header, and what it has at least, in bytes.
    fn named(&self, index: usize) -> (bool, u64) {
        if index <= STATIC_MAX {
            return (index <= STATIC_PSEUDO_MAX, STATIC_NAME_MIN);
        }
        let mut newest_first = self.entries.iter().rev();
        let entry = newest_first.nth(index - STATIC_MAX - 1);
        entry.map_or((false, 0), |entry| (entry.is_pseudo, entry.name_min))
    }

    fn insert(&mut self, inserts: Inserts, value: TableString, since: &mut u64) {
        let keeps = match (inserts.is_pseudo, value.is_huffman) {
            (false, _) => 0,
            (true, true) => {
                let longest = self.huffman_longest.max(HUFFMAN_FREE);
                let decoded = std::mem::take(&mut self.huffman_since).min(longest);
                decoded.saturating_mul(TIMES_HUFFMAN)
            }
            (true, false) => match (std::mem::take(since), self.block.is_joined) {
                (since, false) => since.min(BUFFER_BYTES),
                (_, true) => self.joined_bytes(),
            },
        };
        let size_min = inserts.name_min.saturating_add(value.decoded_min());
        let entry = TableEntry {
            is_pseudo: inserts.is_pseudo,
            keeps,
            name_min: inserts.name_min,
            size_min: size_min.saturating_add(ENTRY_BYTES),
        };
        self.kept = self.kept.saturating_add(keeps);
        self.size_min = self.size_min.saturating_add(entry.size_min);
        self.entries.push_back(entry);
        // An entry that is larger than the table pushes out all, and is not kept either.
        while self.size_min > TABLE_BYTES
            && let Some(oldest) = self.entries.pop_front()
        {
            self.kept = self.kept.saturating_sub(oldest.keeps);
            self.size_min = self.size_min.saturating_sub(oldest.size_min);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `:path` with a value, to be remembered.
    fn path(value: &str) -> Vec<u8> {
        let mut field = vec![0x44, u8::try_from(value.len()).unwrap()];
        field.extend(value.as_bytes());
        field
    }

    fn literal(first: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
        let mut field = vec![first, u8::try_from(name.len()).unwrap()];
        field.extend(name);
        field.push(u8::try_from(value.len()).unwrap());
        field.extend(value);
        field
    }

    /// What is kept after these blocks, each after 1,000 other bytes, in parts of this length.
    fn kept(blocks: &[Vec<u8>], cut: usize) -> u64 {
        let mut table = HeaderTable::default();
        let mut since = 0;
        for block in blocks {
            since += 1_000;
            table.begin(wide(block.len()), false);
            for part in block.chunks(cut) {
                table.advance(part, &mut since);
            }
            assert_eq!(table.at, At::Field, "{block:?}");
        }
        table.kept()
    }

    #[test]
    fn paths_that_are_to_be_remembered_keep_what_came_before_them() {
        for cut in 1..20 {
            // GET, https, a path, an authority of 200 bytes.
            let mut block = vec![0x82, 0x87];
            block.extend(path("/a/B"));
            block.extend([0x41, 0x7f, 0x49]);
            block.extend([b'x'; 200]);
            assert_eq!(kept(&[block.clone()], cut), 1_000, "{cut}");
            // The same by their indices, and one that is not to be remembered.
            let again = vec![0x82, 0x87, 0xbe, 0xbf, 0x04, 1, b'/'];
            assert_eq!(kept(&[block.clone(), again], cut), 1_000, "{cut}");
            assert_eq!(kept(&[block, path("/c")], cut), 2_000, "{cut}");
        }
    }

    #[test]
    fn other_headers_keep_nothing_and_take_the_entries_of_paths_away() {
        let te = literal(0x40, b"te", b"trailers");
        // By the index of the newest entry, which is `te`.
        let by_index = vec![0x7e, 1, b'x'];
        assert_eq!(kept(&[te.clone(), by_index.clone()], 3), 0);
        assert_eq!(kept(&[path("/a"), te.clone()], 3), 1_000);
        // 37 bytes of a path, at least, and 42 of each other.
        let mut blocks = vec![path("/a")];
        blocks.extend(vec![te; 96]);
        assert_eq!(kept(&blocks, 3), 1_000);
        blocks.push(by_index);
        assert_eq!(kept(&blocks, 3), 0);
    }

    /// As a token that is another one in each call: no path stays in the table for long.
    #[test]
    fn large_headers_take_the_entries_of_paths_away_at_once() {
        let long = |first: u8, is_huffman: bool| {
            let mut field = vec![0x40, 1, b'x', 0x7f, 0xa9, 0x10];
            field[0] = first;
            field[3] |= u8::from(is_huffman) << 7;
            field.extend(vec![0x1c; 127 + 0x29 + (0x10 << 7)]);
            field
        };
        for (is_huffman, stay) in [(false, 2), (true, 7)] {
            let mut blocks = Vec::new();
            for _ in 0..50 {
                blocks.push(path("/a"));
                blocks.push(long(0x40, is_huffman));
            }
            // A path that comes after 1,000 bytes, and the block before.
            let mut table = HeaderTable::default();
            let mut since = 0;
            for block in &blocks {
                since += 1_000;
                table.begin(wide(block.len()), false);
                table.advance(block, &mut since);
            }
            assert!(table.entries.len() <= 2 * stay, "{}", table.entries.len());
        }
        // Of one that has no room in the table nothing is left.
        let mut huge = vec![0x44, 0x7f, 0x82, 0x1f];
        huge.extend(vec![b'x'; 127 + 2 + (0x1f << 7)]);
        assert_eq!(kept(&[path("/a"), huge], 100), 0);
    }

    #[test]
    fn a_name_is_known_however_it_is_given() {
        let plain = literal(0x40, b":path", b"/");
        // `:path` by the Huffman code of RFC 7541.
        let huffman = {
            let mut field = vec![0x40, 0x84, 0xb9, 0x58, 0xd3, 0x3f];
            field.extend([1, b'/']);
            field
        };
        let by_index = vec![0x7e, 1, b'/'];
        assert_eq!(kept(&[plain.clone(), by_index.clone()], 2), 2_000);
        assert_eq!(kept(&[huffman, by_index], 2), 2_000);
        let never = literal(0x10, b":path", b"/");
        assert_eq!(kept(&[never, vec![0x3f, 0xe1, 0x1f]], 2), 0);
    }

    /// A block in two frames of so many bytes.
    fn joined(table: &mut HeaderTable, block: &[u8], bytes: u64, since: &mut u64) {
        let (first, last) = block.split_at(2);
        table.begin(bytes, true);
        table.advance(first, since);
        assert!(table.kept() >= 2 * bytes, "it is kept until it is whole");
        table.go_on(bytes, false);
        table.advance(last, since);
    }

    #[test]
    fn a_path_of_a_block_in_several_frames_keeps_all_of_a_buffer_of_its_own() {
        for (bytes, keeps) in [(10, BUFFER_BYTES), (16_000, 64_000)] {
            let mut table = HeaderTable::default();
            let mut since = 0;
            for number in 1..=3 {
                joined(&mut table, &path("/a"), bytes, &mut since);
                assert_eq!(table.kept(), number * keeps);
            }
        }
    }

    #[test]
    fn a_path_that_is_decoded_keeps_what_all_strings_before_it_are_decoded_into() {
        let huffman = |first: u8, length: usize| {
            // The length in seven bits, and what is above 127 in two bytes.
            let rest = u16::try_from(length - 127).unwrap();
            let mut field = vec![first, 0xff, (rest & 0x7f) as u8 | 0x80, (rest >> 7) as u8];
            field.extend(vec![0; length]);
            field
        };
        let mut table = HeaderTable::default();
        let mut since = 0;
        let mut read = |table: &mut HeaderTable, field: &[u8]| {
            table.begin(wide(field.len()), false);
            table.advance(field, &mut since);
            assert_eq!(table.at, At::Field);
        };
        // A path that is not remembered, and others that are.
        read(&mut table, &huffman(0x04, 10_000));
        let decoder = 8 * 10_000;
        assert_eq!(table.kept(), decoder);
        read(&mut table, &[0x44, 0x81, 0x63]);
        assert_eq!(table.kept(), decoder + 4 * 10_000);
        read(&mut table, &[0x44, 0x81, 0x63]);
        assert_eq!(table.kept(), decoder + 4 * 10_001);
        read(&mut table, &huffman(0x04, 1_000));
        read(&mut table, &[0x44, 0x81, 0x63]);
        assert_eq!(table.kept(), decoder + 4 * 11_002);
    }

    /// No buffer to decode into is small, however short the strings are.
    #[test]
    fn many_short_strings_before_a_path_keep_a_buffer() {
        let mut table = HeaderTable::default();
        let mut since = 0;
        for number in 1..=100 {
            let mut block = [0x00, 0x81, 0x1f, 0x81, 0x1f].repeat(1_400);
            block.extend([0x44, 0x81, 0x63]);
            table.begin(wide(block.len()), false);
            table.advance(&block, &mut since);
            assert_eq!(table.kept(), number * 4 * HUFFMAN_FREE);
        }
    }

    #[test]
    fn the_fields_of_a_block_that_goes_on_count() {
        let mut table = HeaderTable::default();
        let mut since = 0;
        table.begin(8_000, true);
        table.advance(&literal(0x00, b"a", b"").repeat(400), &mut since);
        assert_eq!(table.kept(), 16_384 + 400 * FIELD_BYTES);
        table.go_on(10, false);
        assert_eq!(table.kept(), 0);
    }

    #[test]
    fn a_table_keeps_no_more_than_its_entries_may() {
        let mut table = HeaderTable::default();
        for _ in 0..1_000 {
            let mut since = 1_000_000;
            table.begin(4, false);
            table.advance(&path("/a"), &mut since);
        }
        // 37 bytes each, at least.
        assert_eq!(table.kept(), BUFFER_BYTES * 110);
        assert_eq!(table.entries.len(), 110);
    }
}
