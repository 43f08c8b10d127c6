//! Random numbers and texts through `struct.pack` and `struct.unpack`.

use tollgate_testkit::traffic::Random;

use super::{Both, at_length, pick};

/// Packs values, and unpacks them with something behind. Numbers are compared to the last bit.
const THERE_AND_BACK: &str = "
    local values = {}
    for i = 2, #ARGV do values[i - 1] = tonumber(ARGV[i]) or ARGV[i] end
    local packed = struct.pack(ARGV[1], unpack(values))
    local told = {packed}
    for _, value in ipairs({struct.unpack(ARGV[1], packed .. 'rest')}) do
      told[#told + 1] = type(value) == 'number' and string.format('%.17g', value) or value
    end
    return told";

/// Unpacks bytes, from some place on.
const BACK: &str = "
    local told = {}
    for _, value in ipairs({struct.unpack(ARGV[1], ARGV[2], tonumber(ARGV[3]))}) do
      told[#told + 1] = type(value) == 'number' and string.format('%.17g', value) or value
    end
    return told";

const PARTS: [&str; 24] = [
    "B", "b", "H", "h", "L", "l", "T", "I", "i", "I1", "i1", "I2", "i2", "I3", "i4", "I4", "i8",
    "I8", "f", "d", "d", "s", "c3", "x",
];

const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "127",
    "128",
    "255",
    "-128",
    "65536",
    "4294967295",
    "1700000000000000",
    "9007199254740991",
    "-9007199254740991",
    "0.5",
    "-2.75",
];

fn format(random: &mut Random) -> (String, Vec<&'static str>) {
    let (mut format, mut values) = (String::new(), Vec::new());
    for _ in 0..=random.below(6) {
        if random.below(3) == 0 {
            format += pick(random, &["<", ">", " "]);
        }
        let part = pick(random, &PARTS);
        format += part;
        match part {
            "x" => {}
            "s" | "c3" => values.push(pick(random, &["abc", "four", "", "ab"])),
            _ => values.push(pick(random, &NUMBERS)),
        }
    }
    if random.below(20) == 0 {
        format += pick(random, &["y", "d", "Bc0"]);
    }
    (format, values)
}

#[test]
fn what_is_packed_and_unpacked_is_as_in_redis() {
    let mut both = Both::new();
    let (mut random, mut sound) = (Random::new(7), 0);
    let rounds = at_length(3_000);
    for _ in 0..rounds {
        let (format, values) = format(&mut random);
        let words: Vec<&[u8]> = [&*format]
            .into_iter()
            .chain(values)
            .map(str::as_bytes)
            .collect();
        both.history.clear();
        sound += u64::from(both.same_script(THERE_AND_BACK, &words).is_ok());
    }
    assert!(sound > rounds / 2, "{sound} of {rounds} were packed");
}

#[test]
fn random_bytes_are_unpacked_as_in_redis() {
    let mut both = Both::new();
    let (mut random, mut sound) = (Random::new(8), 0);
    let rounds = at_length(3_000);
    for _ in 0..rounds {
        let (format, _) = format(&mut random);
        let length = random.below(60);
        let bytes: Vec<u8> = (0..length)
            .map(|_| random.next().to_le_bytes()[0] & 0xf3)
            .collect();
        let start = pick(&mut random, &["1", "1", "2", "9", "60", "0", "-1", ""]);
        both.history.clear();
        let told = both.same_script(BACK, &[format.as_bytes(), &bytes, start.as_bytes()]);
        sound += u64::from(told.is_ok());
    }
    assert!(sound > rounds / 4, "{sound} of {rounds} were unpacked");
}

#[test]
fn wrong_arguments_are_told_as_in_redis() {
    let mut both = Both::new();
    for script in [
        "return struct.unpack('<d', 'short')",
        "return struct.unpack('<y', 'data')",
        "return struct.unpack(nil, 'data')",
        "return struct.unpack('<d')",
        "return struct.unpack('<d', 'nine bytes', 0)",
        "return struct.unpack('<d', 'nine bytes', 9)",
        "return struct.unpack('<d', {})",
        "return struct.unpack('s', 'endless')",
        "return struct.unpack('c0', 'data')",
        "return struct.unpack('Bc0', '\\9data')",
        "return struct.pack('<d', 'x')",
        "return struct.pack('<d', {})",
        "return struct.pack('c4', 'x')",
        "return struct.pack('s', {})",
    ] {
        assert!(both.same_script(script, &[]).is_err(), "{script}");
    }
    for script in [
        "return {struct.unpack('Bc0', '\\4data')}",
        "return {struct.unpack('B', 'ab', 2)}",
        "return {struct.unpack('', 'ab', 3)}",
        "return {struct.unpack('', 'ab', 9)}",
        "return {struct.unpack('', 'ab', -1)}",
        "return {struct.unpack('<I2', 'abcd', 2.9)}",
        "return struct.pack('<d', '7')",
        "return struct.pack('s', 7)",
    ] {
        assert!(both.same_script(script, &[]).is_ok(), "{script}");
    }
}
