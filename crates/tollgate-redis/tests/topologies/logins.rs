//! Passwords: of a store, of a cluster, behind sentinels, and of the sentinels themselves.

use super::*;

#[tokio::test]
async fn a_password() {
    let server = Server::builder()
        .password("op%n sesame".replace(' ', "").as_str())
        .start();
    let url = format!("redis://:op%25nsesame@127.0.0.1:{}", server.port());
    holds_at(&url).await;
    let error = refused_at(&url.replace("sesame", "barley")).await;
    assert_eq!((error.kind(), &*error.to_string()), WRONG_LOGIN);
    for database in ["", "/1"] {
        let url = format!("redis://127.0.0.1:{}{database}", server.port());
        let error = refused_at(&url).await;
        assert_eq!((error.kind(), &*error.to_string()), NO_LOGIN);
    }
    // One that nobody asked for is wrong too.
    let open = Server::start();
    let error = refused_at(&open.url().replace("redis://", "redis://:barley@")).await;
    assert_eq!((error.kind(), &*error.to_string()), WRONG_LOGIN);
}

pub(super) const WRONG_LOGIN: (FailureKind, &str) = (
    FailureKind::Auth,
    "the store answered with an error: wrong user or password; correct them in its URL, as \
     user:password@ before the host, with %40 for @ and the like",
);
const NO_LOGIN: (FailureKind, &str) = (
    FailureKind::Auth,
    "the store answered with an error: it wants a password; write it into its URL, as :password@ or \
     user:password@ before the host",
);

#[tokio::test]
async fn a_password_of_a_cluster_and_behind_sentinels() {
    let cluster = Cluster::start_with(Server::builder().password("sesame"));
    holds_at(&cluster.url()).await;
    let sentinels = Sentinels::start_with(Server::builder().password("sesame"));
    holds_at(&sentinels.url()).await;
    for url in [cluster.url(), sentinels.url()] {
        let ready = |url: String| async move { connect(&url).ready(DEADLINE).await.unwrap_err() };
        let error = ready(url.replace("sesame", "barley")).await;
        assert_eq!((error.kind(), &*error.to_string()), WRONG_LOGIN);
        let error = ready(url.replace(":sesame@", "")).await;
        assert_eq!((error.kind(), &*error.to_string()), NO_LOGIN);
    }
}

#[tokio::test]
async fn sentinels_with_a_password_of_their_own() {
    let sentinels = Sentinels::start_with(Server::builder().password("own"));
    let url = sentinels.url();
    for sentinel in sentinels.sentinels() {
        let user = ["watcher", "on", ">se&ame", "~*", "&*", "+@all"];
        sentinel.command(&[&["ACL", "SETUSER"], &user[..]].concat());
        for (name, rights) in [("modest", "+sentinel|masters"), ("nobody", "+ping")] {
            sentinel.command(&["ACL", "SETUSER", name, "on", ">sesame", "+role", rights]);
        }
        sentinel.command(&["ACL", "SETUSER", "default", "on", "resetpass", ">sesame"]);
    }
    let ready = |url: String| async move { connect(&url).ready(DEADLINE).await };
    assert_eq!(
        ready(format!("{url}?sentinel_password=sesame")).await,
        Ok(())
    );
    holds_at(&format!(
        "{url}?sentinel_user=watcher&sentinel_password=se%26ame"
    ))
    .await;
    let wrong = "the store answered with an error: the sentinels know no such user or password; correct \
                 them in the URL, as ?sentinel_password=… with &sentinel_user=… if need be, and %26 for & and \
                 the like";
    let none = "the store answered with an error: the sentinels want a password of their own; write it into \
                the URL, as ?sentinel_password=… with &sentinel_user=… if need be";
    for (login, expected) in [
        ("", none),
        ("?sentinel_password=barley", wrong),
        ("?sentinel_user=watcher", none),
        ("?sentinel_user=watcher&sentinel_password=barley", wrong),
    ] {
        let error = ready(format!("{url}{login}")).await.unwrap_err();
        let told = (error.kind(), &*error.to_string());
        assert_eq!(told, (FailureKind::Auth, expected), "{login}");
    }
    // They are content, and the master isn't.
    let theirs = format!("{url}?sentinel_password=sesame");
    let error = ready(theirs.replace(":own@", "")).await.unwrap_err();
    assert_eq!((error.kind(), &*error.to_string()), NO_LOGIN);
    let error = ready(theirs.replace(":own@", ":other@")).await.unwrap_err();
    assert_eq!((error.kind(), &*error.to_string()), WRONG_LOGIN);
    // A user of theirs needs little.
    let with = |user: &str| format!("{url}?sentinel_user={user}&sentinel_password=sesame");
    assert_eq!(ready(with("modest")).await, Ok(()));
    let error = ready(with("nobody")).await.unwrap_err();
    assert_eq!(error.kind(), FailureKind::NoPermission, "{error}");
    let needs = "; what the user of the sentinels needs: +role +sentinel|masters";
    assert!(error.to_string().ends_with(needs), "{error}");
}
