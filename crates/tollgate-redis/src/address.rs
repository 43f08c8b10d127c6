//! The address of a store, as a URL: one server, a master behind sentinels, or a cluster.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use derive_more::{Debug, Display};

/// The address of a store, and the login.
///
/// | URL | |
/// |---|---|
/// | `redis://[user:password@]host[:port][/database]` | one server |
/// | `rediss://…` | the same with TLS |
/// | `redis+unix:///path/to.sock[?db=1]` | the same over a UNIX socket |
/// | `redis+sentinel://[user:password@]host[:port],host[:port]/name[/database]` | the master that the sentinels call `name` |
/// | `redis+cluster://[user:password@]host[:port],host[:port]` | a cluster, by some of its nodes |
/// | `rediss+sentinel://`, `rediss+cluster://` | with TLS |
///
/// `valkey` may stand for `redis`. User and password are the store's; `?sentinel_user=…&sentinel_password=…`
/// are those of the sentinels, if they need a login. With TLS, `?ca=FILE` names the certificates to trust
/// instead of the system's, and `?cert=FILE&key=FILE` the client's own. Percent-encode characters with a
/// meaning in URLs, such as `%40` for `@`.
///
/// ```
/// use tollgate_redis::Address;
///
/// let address: Address = "redis+sentinel://10.0.0.1,10.0.0.2:26380/mymaster/3".parse()?;
/// assert_eq!(address.to_string(), "redis+sentinel://10.0.0.1:26379,10.0.0.2:26380/mymaster/3");
/// let error = "redis://host:port".parse::<Address>().unwrap_err();
/// assert_eq!(error.to_string(), "\"redis://host:port\": \"port\" is no port");
/// # Ok::<(), tollgate_redis::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[debug("Address({self})")]
pub struct Address {
    pub(crate) topology: Topology,
    pub(crate) login: Login,
    pub(crate) database: i64,
    pub(crate) tls: Option<Certificates>,
    /// The login of the sentinels.
    pub(crate) sentinel: Login,
}

/// A login. A part that is empty isn't sent to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// The topology of the store, with its hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Single(Node),
    Socket(PathBuf),
    Sentinel { sentinels: Vec<Node>, name: String },
    Cluster(Vec<Node>),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Node {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Paths of certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Certificates {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// A URL that isn't a valid address. The message leaves out the password.
///
/// ```
/// use tollgate_redis::Address;
///
/// let error = "redis://ada:secret@host/x".parse::<Address>().unwrap_err();
/// assert_eq!(error.to_string(), "\"redis://…@host/x\": \"x\" is no number of a database");
/// ```
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[display("{url:?}: {what}")]
pub struct AddressError {
    url: String,
    what: String,
}

impl std::error::Error for AddressError {}

/// What follows `redis` or `rediss` in the URL.
#[derive(Clone, Copy)]
enum Scheme {
    Single,
    Unix,
    Sentinel,
    Cluster,
}

impl Address {
    /// A text without user and password, to be shown, even if it isn't a valid URL.
    ///
    /// ```
    /// use tollgate_redis::Address;
    ///
    /// assert_eq!(Address::without_login("redis://ada:secret@db:6379/0"), "redis://…@db:6379/0");
    /// ```
    pub fn without_login(url: &str) -> String {
        without_login(url)
    }

    /// The address of a client without a store.
    pub(crate) fn none() -> Self {
        Self {
            topology: Topology::Cluster(Vec::new()),
            login: Login::default(),
            database: 0,
            tls: None,
            sentinel: Login::default(),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(url: &str) -> Result<Self, AddressError> {
        parse(url).map_err(|what| AddressError {
            url: without_login(url),
            what,
        })
    }
}

/// The URL without its password, whether that is before the host or in the query.
fn without_login(url: &str) -> String {
    let (place, query) = match url.split_once('?') {
        Some((place, query)) if query.contains("password") => (place, "?…"),
        _ => (url, ""),
    };
    match (place.find("://"), place.rfind('@')) {
        (Some(start), Some(end)) if start < end => {
            format!("{}…{}{query}", &place[..start + 3], &place[end..])
        }
        _ => format!("{place}{query}"),
    }
}

fn parse(url: &str) -> Result<Address, String> {
    let (form, is_tls, rest) = parse_scheme(url)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (login, rest) = match rest.rsplit_once('@') {
        Some((login, rest)) => (login, rest),
        None => ("", rest),
    };
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(percent_decode(password)?)),
        None => (login, None),
    };
    let user = Some(percent_decode(user)?).filter(|user| !user.is_empty());
    let mut address = Address {
        login: Login { user, password },
        tls: is_tls.then(Certificates::default),
        ..Address::none()
    };
    address.apply_query(form, query)?;
    address.topology = match form {
        Scheme::Unix if rest.is_empty() => return Err("the path of a socket is missing".to_owned()),
        Scheme::Unix => Topology::Socket(percent_decode(rest)?.into()),
        form => address.parse_hosts(form, rest)?,
    };
    Ok(address)
}

/// The scheme of the URL: its form, whether it uses TLS, and the text after it.
fn parse_scheme(url: &str) -> Result<(Scheme, bool, &str), String> {
    let schemes = "redis://, rediss://, redis+unix://, redis+sentinel:// or redis+cluster://";
    let parts = url.split_once("://");
    let (scheme, rest) = parts.ok_or_else(|| format!("expected {schemes}"))?;
    let scheme = scheme.replacen("valkey", "redis", 1);
    let (form, is_tls) = match scheme.as_str() {
        "redis" => (Scheme::Single, false),
        "rediss" => (Scheme::Single, true),
        "unix" | "redis+unix" => (Scheme::Unix, false),
        "redis+sentinel" => (Scheme::Sentinel, false),
        "rediss+sentinel" => (Scheme::Sentinel, true),
        "redis+cluster" => (Scheme::Cluster, false),
        "rediss+cluster" => (Scheme::Cluster, true),
        other => return Err(format!("{other:?} is none of {schemes}")),
    };
    Ok((form, is_tls, rest))
}

impl Address {
    /// Applies what follows the question mark.
    fn apply_query(&mut self, form: Scheme, query: &str) -> Result<(), String> {
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let value = percent_decode(value)?;
            match (name, &mut self.tls) {
                ("db", _) => self.database = parse_database(&value)?,
                ("user", _) => self.login.user = Some(value),
                ("password", _) => self.login.password = Some(value),
                ("sentinel_user" | "sentinel_password", _) if !matches!(form, Scheme::Sentinel) => {
                    return Err(format!(
                        "{name:?} is for sentinels: begin with redis+sentinel"
                    ));
                }
                ("sentinel_user", _) => self.sentinel.user = Some(value),
                ("sentinel_password", _) => self.sentinel.password = Some(value),
                ("ca", Some(tls)) => tls.ca = Some(value.into()),
                ("cert", Some(tls)) => tls.cert = Some(value.into()),
                ("key", Some(tls)) => tls.key = Some(value.into()),
                ("ca" | "cert" | "key", None) => {
                    return Err(format!("{name:?} is for TLS: begin with rediss"));
                }
                _ => {
                    return Err(format!(
                        "{name:?} is none of db, user, password, sentinel_user, sentinel_password, ca, cert, key"
                    ));
                }
            }
        }
        let is_half = |tls: &Certificates| tls.cert.is_some() != tls.key.is_some();
        if self.tls.as_ref().is_some_and(is_half) {
            return Err("a certificate and its key come together: ?cert=FILE&key=FILE".to_owned());
        }
        Ok(())
    }

    /// Parses the hosts, and what follows them: the number of a database, or the name of a master.
    fn parse_hosts(&mut self, form: Scheme, text: &str) -> Result<Topology, String> {
        let mut parts = text.split('/');
        let hosts = parts.next().unwrap_or_default();
        let default_port = match form {
            Scheme::Sentinel => 26379,
            _ => 6379,
        };
        let nodes = hosts.split(',').map(|host| parse_node(host, default_port));
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
        let (name, number) = match (form, parts.as_slice()) {
            (Scheme::Sentinel, []) => {
                return Err("the master's name is missing: …/mymaster".to_owned());
            }
            (Scheme::Sentinel, [name]) => (percent_decode(name)?, None),
            (Scheme::Sentinel, [name, number]) => (percent_decode(name)?, Some(*number)),
            (_, []) => (String::new(), None),
            (Scheme::Single, [number]) => (String::new(), Some(*number)),
            (Scheme::Cluster, _) => return Err("a cluster has one database, 0".to_owned()),
            (_, [.., last]) => return Err(format!("{last:?} is one part too many")),
        };
        if let Some(number) = number {
            self.database = parse_database(number)?;
        }
        match form {
            Scheme::Sentinel => Ok(Topology::Sentinel {
                sentinels: nodes,
                name,
            }),
            Scheme::Cluster if self.database != 0 => {
                Err("a cluster has one database, 0".to_owned())
            }
            Scheme::Cluster => Ok(Topology::Cluster(nodes)),
            _ => {
                let many = "several hosts: redis+sentinel:// or redis+cluster:// is meant";
                let node = <[Node; 1]>::try_from(nodes).map_err(|_| many.to_owned());
                node.map(|[node]| Topology::Single(node))
            }
        }
    }
}

fn parse_database(text: &str) -> Result<i64, String> {
    text.parse::<u32>()
        .map(i64::from)
        .map_err(|_| format!("{text:?} is no number of a database"))
}

fn parse_node(text: &str, default_port: u16) -> Result<Node, String> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err("a host is missing".to_owned());
    }
    let port = match port {
        None => default_port,
        Some(port) => port.parse().map_err(|_| format!("{port:?} is no port"))?,
    };
    Ok(Node {
        host: percent_decode(host)?,
        port,
    })
}

/// The text with `%40` and the like decoded.
fn percent_decode(text: &str) -> Result<String, String> {
    let mut parts = text.split('%');
    let mut bytes = Vec::from(parts.next().unwrap_or_default());
    for part in parts {
        let byte = (part.get(..2)).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        let byte =
            byte.ok_or_else(|| format!("after a % in {text:?} two hex digits are expected"))?;
        bytes.push(byte);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).map_err(|_| format!("{text:?} is no text in UTF-8"))
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

/// The URL without user and password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.tls.is_some() { "s" } else { "" };
        let list = |nodes: &[Node]| {
            let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
            nodes.join(",")
        };
        let database = self.database;
        match &self.topology {
            Topology::Single(node) => write!(f, "redis{tls}://{node}/{database}"),
            Topology::Socket(path) => write!(f, "redis+unix://{}?db={database}", path.display()),
            Topology::Sentinel { sentinels, name } => {
                let sentinels = list(sentinels);
                write!(f, "redis{tls}+sentinel://{sentinels}/{name}/{database}")
            }
            Topology::Cluster(nodes) => write!(f, "redis{tls}+cluster://{}", list(nodes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_where_the_store_is() {
        for (url, shown) in [
            ("redis://localhost", "redis://localhost:6379/0"),
            ("valkey://u:p%40@[::1]:7000/2", "redis://[::1]:7000/2"),
            ("rediss://h/1?ca=/a.pem", "rediss://h:6379/1"),
            (
                "redis+unix:///run/r.sock?db=4",
                "redis+unix:///run/r.sock?db=4",
            ),
            (
                "redis+sentinel://a,b:1/m",
                "redis+sentinel://a:26379,b:1/m/0",
            ),
            ("rediss+cluster://a,b", "rediss+cluster://a:6379,b:6379"),
        ] {
            let address: Address = url.parse().unwrap();
            assert_eq!(address.to_string(), shown, "{url}");
        }
        let address: Address = "redis://ada:s%3Acret@h".parse().unwrap();
        assert_eq!(address.login.user.as_deref(), Some("ada"));
        assert_eq!(address.login.password.as_deref(), Some("s:cret"));
        let url = "redis+sentinel://ada:own@h/m?sentinel_user=bob&sentinel_password=s%26cret";
        let address: Address = url.parse().unwrap();
        let Login { user, password } = address.sentinel;
        assert_eq!(
            (user.as_deref(), password.as_deref()),
            (Some("bob"), Some("s&cret"))
        );
        assert_eq!(address.login.password.as_deref(), Some("own"));
        let address: Address = "redis://:secret@h".parse().unwrap();
        let Login { user, password } = address.login;
        assert_eq!((user, password.as_deref()), (None, Some("secret")));
    }

    #[test]
    fn a_url_that_says_none_is_told_why() {
        for (url, what) in [
            ("localhost", "expected redis://"),
            ("http://h", "\"http\" is none of"),
            ("redis://", "a host is missing"),
            ("redis://a,b", "several hosts"),
            ("redis://h/x", "no number of a database"),
            ("redis://h/1/2", "one part too many"),
            ("redis+sentinel://a", "the master's name is missing"),
            ("redis+cluster://a/1", "one database"),
            ("redis+unix://", "the path of a socket"),
            ("redis://h?ca=x", "is for TLS"),
            ("rediss://h?cert=x", "come together"),
            ("redis://h?x=1", "is none of db"),
            ("redis://h?sentinel_user=x", "is for sentinels"),
            ("redis://%4@h", "two hex digits"),
        ] {
            let error = url.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(what), "{url}: {error}");
        }
        let error = "redis://ada:secret@h:x".parse::<Address>().unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        let error = "redis://h:x?password=secret"
            .parse::<Address>()
            .unwrap_err();
        assert_eq!(error.to_string(), "\"redis://h:x?…\": \"x\" is no port");
    }
}
