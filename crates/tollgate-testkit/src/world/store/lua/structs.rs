//! `struct.pack` and `struct.unpack`: numbers and text as bytes, by a format.

use mlua::{BorrowedBytes, Lua, LuaString, MultiValue, Value};

use super::double;
use crate::world::store::number::truncated;

/// The meaning of a format's letter.
enum Part {
    /// A whole number of this many bytes; lower-case letters have a sign.
    Whole(usize, Sign),
    Float,
    Double,
    Padding,
    /// This many bytes; 0 is all there are, or as many as the number before.
    Bytes(usize),
    /// Up to a zero byte.
    Text,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    Signed,
    Unsigned,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

/// The most bytes of a whole number. (The original takes longer ones, and pads them.)
const MAX_INTEGER_BYTES: usize = 8;

/// The parts of a format, each with its byte order.
struct Format<'a> {
    rest: &'a [u8],
    order: Order,
}

impl<'a> Format<'a> {
    fn new(text: &'a [u8]) -> Self {
        let order = Order::Little;
        Self { rest: text, order }
    }

    /// The next part; `function` is the caller's name for errors.
    fn next(&mut self, function: &str) -> mlua::Result<Option<Part>> {
        while let [letter, rest @ ..] = self.rest {
            self.rest = rest;
            let whole = |size| {
                let sign = if letter.is_ascii_lowercase() {
                    Sign::Signed
                } else {
                    Sign::Unsigned
                };
                Part::Whole(size, sign)
            };
            return Ok(Some(match letter {
                b'<' => {
                    self.order = Order::Little;
                    continue;
                }
                b'>' => {
                    self.order = Order::Big;
                    continue;
                }
                b' ' => continue,
                b'b' | b'B' => whole(1),
                b'h' | b'H' => whole(2),
                b'l' | b'L' | b'T' => whole(8),
                b'i' | b'I' => match self.size().unwrap_or(4) {
                    size if size > MAX_INTEGER_BYTES => {
                        return Err(mlua::Error::runtime(format!(
                            "integral size {size} is larger than limit of {MAX_INTEGER_BYTES}"
                        )));
                    }
                    size => whole(size),
                },
                b'f' => Part::Float,
                b'd' => Part::Double,
                b'x' => Part::Padding,
                b'c' => Part::Bytes(self.size().unwrap_or(1)),
                b's' => Part::Text,
                other => {
                    let what = format!("invalid format option '{}'", char::from(*other));
                    return Err(bad(1, function, &what));
                }
            }));
        }
        Ok(None)
    }

    /// The number after a letter, if there is one.
    fn size(&mut self) -> Option<usize> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit());
        let (digits, rest) = self.rest.split_at(digits.count());
        self.rest = rest;
        str::from_utf8(digits).ok()?.parse().ok()
    }
}

pub(super) fn pack(lua: &Lua, args: MultiValue) -> mlua::Result<LuaString> {
    let format = text(lua, &args, 1, "pack")?;
    let (mut format, mut bytes) = (Format::new(&format), Vec::new());
    let mut place = 2;
    while let Some(part) = format.next("pack")? {
        match part {
            Part::Padding => {
                bytes.push(0);
                continue;
            }
            Part::Whole(size, _) => {
                let whole = to_integer(number(lua, &args, place, "pack")?);
                append_number(&mut bytes, &whole.to_le_bytes()[..size], format.order);
            }
            Part::Double => {
                let number = number(lua, &args, place, "pack")?;
                append_number(&mut bytes, &number.to_le_bytes(), format.order);
            }
            #[expect(clippy::cast_possible_truncation, reason = "that is what is asked for")]
            Part::Float => {
                let number = number(lua, &args, place, "pack")? as f32;
                append_number(&mut bytes, &number.to_le_bytes(), format.order);
            }
            Part::Bytes(size) => {
                let text = text(lua, &args, place, "pack")?;
                let size = if size == 0 { text.len() } else { size };
                // The original names the argument after it.
                let short = || bad(place + 1, "pack", "string too short");
                bytes.extend_from_slice(text.get(..size).ok_or_else(short)?);
            }
            Part::Text => {
                bytes.extend_from_slice(&text(lua, &args, place, "pack")?);
                bytes.push(0);
            }
        }
        place += 1;
    }
    lua.create_string(bytes)
}

pub(super) fn unpack(lua: &Lua, args: MultiValue) -> mlua::Result<MultiValue> {
    let format = text(lua, &args, 1, "unpack")?;
    let data = text(lua, &args, 2, "unpack")?;
    let start = match args.get(2) {
        None | Some(Value::Nil) => 1,
        Some(_) => truncated(number(lua, &args, 3, "unpack")?),
    };
    if start == 0 {
        return Err(bad(3, "unpack", "offset must be 1 or greater"));
    }
    // A negative position is far beyond all data.
    let mut place = usize::try_from(start.wrapping_sub(1).cast_unsigned()).unwrap_or(usize::MAX);
    let mut format = Format::new(&format);
    let mut values = Vec::new();
    let short = || bad(2, "unpack", "data string too short");
    while let Some(part) = format.next("unpack")? {
        let rest = data.get(place..).ok_or_else(short)?;
        let fixed = |size| rest.get(..size).ok_or_else(short);
        let (size, value) = match part {
            Part::Padding => {
                place += fixed(1)?.len();
                continue;
            }
            Part::Whole(size, sign) => {
                let bits = u64::from_le_bytes(ordered(fixed(size)?, format.order));
                (size, Value::Number(valued(bits, size, sign)))
            }
            Part::Double => {
                let bytes = ordered(fixed(8)?, format.order);
                (8, Value::Number(f64::from_le_bytes(bytes)))
            }
            Part::Float => {
                let bytes = ordered(fixed(4)?, format.order);
                (4, Value::Number(f32::from_le_bytes(bytes).into()))
            }
            Part::Bytes(size) => {
                let size = match size {
                    0 => given_length(values.pop())?,
                    size => size,
                };
                (size, Value::String(lua.create_string(fixed(size)?)?))
            }
            Part::Text => {
                let length = rest.iter().position(|byte| *byte == 0);
                let unfinished = || mlua::Error::runtime("unfinished string in data");
                let length = length.ok_or_else(unfinished)?;
                (
                    length + 1,
                    Value::String(lua.create_string(&rest[..length])?),
                )
            }
        };
        place += size;
        values.push(value);
    }
    let next = u64::try_from(place).unwrap_or(u64::MAX).wrapping_add(1);
    values.push(Value::Integer(next.cast_signed()));
    Ok(MultiValue::from_vec(values))
}

fn append_number(to: &mut Vec<u8>, little: &[u8], order: Order) {
    match order {
        Order::Little => to.extend_from_slice(little),
        Order::Big => to.extend(little.iter().rev()),
    }
}

/// Up to this many bytes in little-endian order.
fn ordered<const SIZE: usize>(bytes: &[u8], order: Order) -> [u8; SIZE] {
    let mut little = [0; SIZE];
    little[..bytes.len()].copy_from_slice(bytes);
    if order == Order::Big {
        little[..bytes.len()].reverse();
    }
    little
}

/// The bits of a whole number: of a negative one, its two's complement.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "as C does it"
)]
fn to_integer(number: f64) -> u64 {
    if number < 0.0 {
        number as i64 as u64
    } else {
        number as u64
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_wrap,
    reason = "as C does it"
)]
fn valued(bits: u64, size: usize, sign: Sign) -> f64 {
    let unused = 8 * (MAX_INTEGER_BYTES - size);
    match sign {
        Sign::Unsigned => bits as f64,
        Sign::Signed if unused >= 64 => 0.0,
        Sign::Signed => ((bits << unused) as i64 >> unused) as f64,
    }
}

/// The number of bytes by the value before.
fn given_length(value: Option<Value>) -> mlua::Result<usize> {
    let number = value.as_ref().and_then(double);
    let number = number.ok_or_else(|| mlua::Error::runtime("format 'c0' needs a previous size"))?;
    Ok(usize::try_from(truncated(number)).unwrap_or(usize::MAX))
}

/// A string, or a number as a string.
fn text(lua: &Lua, args: &MultiValue, place: usize, function: &str) -> mlua::Result<BorrowedBytes> {
    let value = args.get(place - 1);
    if let Some(Value::String(text)) = value {
        return Ok(text.as_bytes());
    }
    let text = lua.coerce_string(value.cloned().unwrap_or(Value::Nil))?;
    let text = text.ok_or_else(|| unexpected(value, "string", place, function));
    Ok(text?.as_bytes())
}

/// A number, or a string that is one.
fn number(lua: &Lua, args: &MultiValue, place: usize, function: &str) -> mlua::Result<f64> {
    let value = args.get(place - 1);
    if let Some(number) = value.and_then(double) {
        return Ok(number);
    }
    let number = lua.coerce_number(value.cloned().unwrap_or(Value::Nil))?;
    number.ok_or_else(|| unexpected(value, "number", place, function))
}

fn unexpected(value: Option<&Value>, expected: &str, place: usize, function: &str) -> mlua::Error {
    let got = match value {
        // The original has a mark after its last argument.
        None if function == "pack" => "nil",
        None => "no value",
        Some(Value::Integer(_)) => "number",
        Some(value) => value.type_name(),
    };
    bad(place, function, &format!("{expected} expected, got {got}"))
}

fn bad(place: usize, function: &str, why: &str) -> mlua::Error {
    mlua::Error::runtime(format!("bad argument #{place} to '{function}' ({why})"))
}
