//! The Lua of scripts: Lua 5.1 with the functions that Redis provides to scripts.

mod structs;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlua::{BorrowedBytes, Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value};

use super::command::{Origin, Server};
use super::error::{Answer, ServerError};
use super::number;
use crate::redis::Reply;

/// A Lua with its compiled scripts, and the server that their commands run on.
pub(super) struct Vm {
    lua: Lua,
    globals: Table,
    run: Function,
    scripts: HashMap<String, Function>,
    server: Arc<Mutex<Server>>,
}

/// The name of scripts in Lua's error messages.
const SOURCE: &str = "@user_script";
/// A Lua with more compiled scripts than this isn't reused.
const MANY: usize = 256;

/// Idle Luas for reuse: making one takes much longer than a history's first call, and compiling a script longer
/// still.
static IDLE: Mutex<Vec<Vm>> = Mutex::new(Vec::new());

impl Vm {
    /// An idle Lua, with an empty server.
    pub(super) fn take() -> Self {
        let idle = lock(&IDLE).pop();
        idle.unwrap_or_else(|| Self::new().expect("the prelude is sound"))
    }

    /// Returns it for reuse. Scripts can't see anything of earlier ones.
    pub(super) fn put_back(self) {
        if self.server.is_poisoned() || self.scripts.len() > MANY {
            return;
        }
        *self.server() = Server::default();
        lock(&IDLE).push(self);
    }

    fn new() -> mlua::Result<Self> {
        let libraries = StdLib::MATH | StdLib::STRING | StdLib::TABLE;
        // A script that catches errors mustn't catch a panic of this code.
        let options = LuaOptions::new().catch_rust_panics(false);
        let lua = Lua::new_with(libraries, options)?;
        let server = Arc::new(Mutex::new(Server::default()));
        let native = lua.create_table()?;
        let runs = Arc::clone(&server);
        let call = move |lua: &Lua, words: MultiValue| match command(&runs, &words) {
            Ok(reply) => to_lua(lua, reply),
            Err(error) => Err(mlua::Error::external(error)),
        };
        native.set("call", lua.create_function(call)?)?;
        let runs = Arc::clone(&server);
        let pcall = move |lua: &Lua, words: MultiValue| {
            let reply = command(&runs, &words);
            let reply = reply.unwrap_or_else(|error| Reply::Error(error.to_string()));
            to_lua(lua, reply)
        };
        native.set("pcall", lua.create_function(pcall)?)?;
        native.set("pack", lua.create_function(structs::pack)?)?;
        native.set("unpack", lua.create_function(structs::unpack)?)?;
        native.set("plain", lua.create_function(plain)?)?;
        native.set("line", lua.create_function(|lua, ()| Ok(line(lua)))?)?;
        let prelude = lua.load(include_str!("lua/prelude.lua"));
        let (globals, run) = prelude.set_name("@prelude").call(native)?;
        Ok(Self {
            lua,
            globals,
            run,
            scripts: HashMap::new(),
            server,
        })
    }

    pub(super) fn server(&self) -> MutexGuard<'_, Server> {
        lock(&self.server)
    }

    /// Compiles a script, unless it is compiled already.
    pub(super) fn compile(&mut self, sha: &str, text: &str) -> Result<(), ServerError> {
        if self.scripts.contains_key(sha) {
            return Ok(());
        }
        let chunk = self.lua.load(text).set_name(SOURCE);
        let script = chunk.set_environment(self.globals.clone()).into_function();
        let script = script.map_err(|error| {
            let why = match error {
                mlua::Error::SyntaxError { message, .. } => message,
                other => other.to_string(),
            };
            ServerError::new(format!("ERR Error compiling script (new function): {why}"))
        })?;
        self.scripts.insert(sha.to_owned(), script);
        Ok(())
    }

    /// Runs a compiled script.
    pub(super) fn run(&self, sha: &str, keys: &[&[u8]], args: &[&[u8]]) -> Answer {
        let reply = self.try_run(sha, keys, args);
        match reply.unwrap_or_else(|error| Err(ServerError::new(format!("ERR {error}"))))? {
            Reply::Error(line) => Err(ServerError::new(line)),
            reply => Ok(reply),
        }
    }

    fn try_run(&self, sha: &str, keys: &[&[u8]], args: &[&[u8]]) -> mlua::Result<Answer> {
        self.server().start_script();
        let list = |words: &[&[u8]]| {
            let list = self.lua.create_table_with_capacity(words.len(), 0)?;
            for word in words {
                list.raw_push(self.lua.create_string(word)?)?;
            }
            Ok::<_, mlua::Error>(list)
        };
        let script = &self.scripts[sha];
        let (passed, value): (bool, Value) = self.run.call((script, list(keys)?, list(args)?))?;
        if passed {
            return from_lua(&value).map(Ok);
        }
        let error = value.as_table().ok_or(mlua::Error::UserDataTypeMismatch)?;
        let (text, line): (String, usize) = (error.get("err")?, error.get("line")?);
        Ok(Err(ServerError::new(format!(
            "{text} script: {sha}, on {SOURCE}:{line}."
        ))))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A word of a command.
enum Word {
    Text(BorrowedBytes),
    Number(String),
}

impl AsRef<[u8]> for Word {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Text(bytes) => bytes,
            Self::Number(text) => text.as_bytes(),
        }
    }
}

/// Runs a command for a script.
fn command(server: &Mutex<Server>, words: &MultiValue) -> Answer {
    if words.is_empty() {
        return Err(ServerError::new(
            "ERR Please specify at least one argument for this redis lib call",
        ));
    }
    let word = |value: &Value| match value {
        Value::String(text) => Ok(Word::Text(text.as_bytes())),
        other => match double(other) {
            Some(number) => Ok(Word::Number(number::print(number))),
            None => Err(ServerError::new(
                "ERR Lua redis lib command arguments must be strings or integers",
            )),
        },
    };
    let words = words.iter().map(word).collect::<Result<Vec<Word>, _>>()?;
    let words: Vec<&[u8]> = words.iter().map(AsRef::as_ref).collect();
    lock(server).run(Origin::Script, &words)
}

/// A number; Lua 5.1 has one kind.
#[expect(clippy::cast_precision_loss, reason = "it was a double before")]
fn double(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => Some(*number),
        Value::Integer(number) => Some(*number as f64),
        _ => None,
    }
}

/// The Lua value of a reply.
fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    let single = |field, text: String| {
        let table = lua.create_table_with_capacity(0, 1)?;
        table.raw_set(field, text)?;
        Ok(Value::Table(table))
    };
    Ok(match reply {
        Reply::Nil => Value::Boolean(false),
        Reply::Integer(number) => Value::Integer(number),
        Reply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Status(text) => return single("ok", text),
        Reply::Error(text) => return single("err", text),
        Reply::Array(items) => {
            let table = lua.create_table_with_capacity(items.len(), 0)?;
            for item in items {
                table.raw_push(to_lua(lua, item)?)?;
            }
            Value::Table(table)
        }
    })
}

/// The reply for a script's return value.
fn from_lua(value: &Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::Boolean(true) => Reply::Integer(1),
        Value::Integer(number) => Reply::Integer(*number),
        Value::Number(number) => Reply::Integer(number::truncated(*number)),
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Table(table) => {
            if let Value::String(text) = table.raw_get("err")? {
                return Ok(Reply::Error(one_line(&text)));
            }
            if let Value::String(text) = table.raw_get("ok")? {
                return Ok(Reply::Status(one_line(&text)));
            }
            let mut items = Vec::new();
            for item in table.sequence_values::<Value>() {
                items.push(from_lua(&item?)?);
            }
            Reply::Array(items)
        }
        _ => Reply::Nil,
    })
}

fn one_line(text: &mlua::LuaString) -> String {
    text.to_string_lossy().replace(['\r', '\n'], " ")
}

/// An error as a script sees it.
fn plain(lua: &Lua, error: Value) -> mlua::Result<Value> {
    let Value::Error(error) = &error else {
        return Ok(error);
    };
    if let Some(error) = error.downcast_ref::<ServerError>() {
        return to_lua(lua, Reply::Error(error.to_string()));
    }
    let cause = match &**error {
        mlua::Error::CallbackError { cause, .. } => cause,
        other => other,
    };
    let text = match cause {
        mlua::Error::RuntimeError(text) => text.clone(),
        other => other.to_string(),
    };
    let text = format!("{}:{}: {text}", &SOURCE[1..], line(lua));
    Ok(Value::String(lua.create_string(text)?))
}

/// The present line of the script.
fn line(lua: &Lua) -> usize {
    let line_of = |level| {
        lua.inspect_stack(level, |frame| {
            let source = frame.source().source;
            let is_script = source.is_some_and(|source| source == SOURCE);
            is_script.then(|| frame.current_line().unwrap_or(0))
        })
    };
    let frames = (0..).map_while(line_of);
    frames.flatten().next().unwrap_or(0)
}
