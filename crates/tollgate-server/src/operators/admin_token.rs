//! The operators' token: read from a file, or generated at the start and written where only the service's user can read
//! it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::Duration;

use tokio::task::spawn_blocking;

use crate::address::Address;
use crate::secret::Secret;

/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;
/// How often the token's file is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Access for the service's user alone.
const OWN_FILE: u32 = 0o600;
const OWN_FOLDER: u32 = 0o700;

/// The operators' token on the admin listener.
///
/// ```
/// use tollgate_server::{AdminToken, Settings};
///
/// let settings = Settings { admin_token: AdminToken::Generated(None), ..Settings::default() };
/// assert!(matches!(Settings::default().admin_token, AdminToken::Disabled));
/// # drop(settings);
/// ```
#[derive(Clone, Debug, Default)]
pub enum AdminToken {
    /// No token: the admin listener serves only health checks and metrics.
    #[default]
    Disabled,
    /// The lines of this file.
    File(Secret),
    /// A token that is generated at the start and removed at the end: `admin.token` in this folder, or else the first
    /// usable one of [`admin_token_files`]. If none can be written, operators can't authenticate, and the log says why.
    Generated(Option<PathBuf>),
}

/// The file of a generated token, removed on drop.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    token: String,
}

/// The possible files of a generated token for a service at this address, the likeliest first. The name has the port,
/// or the path of the socket; the folders belong to this user. Empty for a disabled listener.
///
/// ```
/// use tollgate_server::{Address, admin_token_files};
///
/// let address: Address = "127.0.0.1:6070".parse()?;
/// let files = admin_token_files(&address);
/// assert!(files.iter().all(|file| file.ends_with("admin-6070.token")));
/// assert!(!files.is_empty() && admin_token_files(&Address::Disabled).is_empty());
/// # Ok::<(), tollgate_server::AddressError>(())
/// ```
pub fn admin_token_files(address: &Address) -> Vec<PathBuf> {
    let name = match address {
        Address::Disabled => return Vec::new(),
        Address::Tcp(address) => address.port().to_string(),
        Address::Unix(path, _) => {
            // The caller may have another working directory.
            let whole = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            let path = whole.to_string_lossy();
            path.trim_start_matches('/').replace('/', "-")
        }
    };
    let file = format!("admin-{name}.token");
    let user = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|folder| folder.is_absolute() && folder.is_dir());
    let runtime = runtime.map(|folder| folder.join("tollgate"));
    let temporary = std::env::temp_dir().join(format!("tollgate-{user}"));
    let folders = runtime.into_iter().chain([temporary]);
    folders.map(|folder| folder.join(&file)).collect()
}

impl AdminToken {
    /// The secret, and the file of a token that is generated now.
    pub(crate) fn resolve(
        &self,
        address: Option<&Address>,
    ) -> Result<(Option<Secret>, Option<TokenFile>), String> {
        let (Self::Generated(folder), Some(address)) = (self, address) else {
            return Ok(match self {
                Self::File(secret) => (Some(secret.clone()), None),
                Self::Disabled | Self::Generated(_) => (None, None),
            });
        };
        let chosen = folder.iter().map(|folder| folder.join("admin.token"));
        let places = chosen.chain(admin_token_files(address));
        let mut wrong = Vec::new();
        for place in places {
            match TokenFile::create(place.clone()) {
                Ok(made) => return Ok((Some(Secret::from_file(&made.path)?), Some(made))),
                Err(error) => wrong.push(format!("{}: {error}", place.display())),
            }
        }
        Err(wrong.join("; "))
    }
}

impl TokenFile {
    fn create(path: PathBuf) -> io::Result<Self> {
        // The path is shown to operators, who may have another working directory.
        let path = std::path::absolute(path)?;
        let mut random = [0; TOKEN_BYTES];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let made = Self { path, token };
        made.write()?;
        Ok(made)
    }

    fn write(&self) -> io::Result<()> {
        let Self { path, token } = self;
        if let Some(folder) = path.parent() {
            ensure_private_folder(folder)?;
        }
        // Renamed into place, so that the file is never empty or an old token. The umask can only remove permissions.
        let beside = path.with_extension("new");
        let _ = fs::remove_file(&beside);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(OWN_FILE)
            .open(&beside)?;
        writeln!(file, "{token}")?;
        fs::rename(&beside, path)
    }

    /// Writes the file again if it is gone: cleaners of temporary folders remove old files, and operators would be
    /// locked out. Another service's file stays.
    fn keep(&self) {
        if !self.path.exists() {
            // A failed write is repeated at the next check.
            let _ = self.write();
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Keeps the token's file in place until the token is dropped.
pub(crate) async fn keep(made: Weak<TokenFile>) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let Some(made) = made.upgrade() else { return };
        let _ = spawn_blocking(move || made.keep()).await;
    }
}

/// Creates a folder that only this user can write to, or checks an existing one: in a shared folder, another user may
/// have created it first.
fn ensure_private_folder(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(OWN_FOLDER).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(folder)?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    let is_open = found.permissions().mode() & 0o022 != 0;
    if found.is_dir() && is_own && !is_open {
        return Ok(());
    }
    let shown = folder.display();
    let why = format!(
        "{shown} is no folder that only this user can write to: remove it, or choose a file by --admin-token-file"
    );
    Err(io::Error::other(why))
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // Another service may listen there meanwhile, with a token of its own.
        let is_own = fs::read_to_string(&self.path).is_ok_and(|text| text.trim() == self.token);
        if is_own {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_testkit::temp_folder::TempFolder;

    use super::*;

    fn made(folder: &Path) -> Result<(Secret, TokenFile), String> {
        let made =
            TokenFile::create(folder.join("admin.token")).map_err(|error| error.to_string())?;
        Ok((Secret::from_file(made.path())?, made))
    }

    #[test]
    fn a_token_is_made_for_its_owner_alone_and_removed_by_its_owner_alone() {
        let scratch = TempFolder::new("admin-token");
        let folder = scratch.path("own");
        let (secret, first) = made(&folder).unwrap();
        let file = folder.join("admin.token");
        let text = fs::read_to_string(&file).unwrap();
        assert!(secret.matches(text.trim().as_bytes()) && !secret.matches(b""));
        assert_eq!(
            (text.len(), first.path()),
            (2 * TOKEN_BYTES + 1, file.as_path())
        );
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&folder)), (OWN_FILE, OWN_FOLDER));
        // The next service has another token, whose file stays when the first service ends.
        let (next, second) = made(&folder).unwrap();
        drop(first);
        let text = fs::read_to_string(&file).unwrap();
        assert!(next.matches(text.trim().as_bytes()) && !secret.matches(text.trim().as_bytes()));
        drop(second);
        assert!(!file.exists());
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_was_swept_away_comes_back_and_that_of_another_stays() {
        let scratch = TempFolder::new("admin-token-swept");
        let folder = scratch.path("own");
        let (secret, made) = made(&folder).unwrap();
        let (file, made) = (made.path().to_owned(), std::sync::Arc::new(made));
        let keeping = tokio::spawn(keep(std::sync::Arc::downgrade(&made)));
        fs::remove_dir_all(&folder).unwrap();
        while !file.exists() {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
        let text = fs::read_to_string(&file).unwrap();
        assert!(secret.matches(text.trim().as_bytes()));
        let mode = fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, OWN_FILE);
        fs::write(&file, "another's").unwrap();
        tokio::time::sleep(3 * CHECK_INTERVAL).await;
        assert_eq!(fs::read_to_string(&file).unwrap(), "another's");
        drop(made);
        keeping.await.unwrap();
    }

    #[test]
    fn a_socket_has_the_same_token_from_every_folder() {
        let whole = std::path::absolute("admin.sock").unwrap();
        let files = |path: &Path| admin_token_files(&Address::Unix(path.to_owned(), 0o600));
        assert_eq!(files(Path::new("admin.sock")), files(&whole));
        let file = files(&whole).remove(0);
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        assert!(name.ends_with("-admin.sock.token"), "{name}");
    }

    #[test]
    fn no_token_is_made_where_others_could_change_it() {
        let scratch = TempFolder::new("admin-token-open");
        let (open, link) = (scratch.path("open"), scratch.path("link"));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(scratch.folder(), &link).unwrap();
        for folder in [open, link] {
            let why = made(&folder).unwrap_err();
            assert!(
                why.contains("is no folder that only this user can write to"),
                "{why}"
            );
            assert!(!folder.join("admin.token").exists());
        }
    }
}
