//! libQtCassandra's `QCassandraLock`: an object that locks a name in its constructor or later, and unlocks in its destructor.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fermata_client::{Client, Lock, LockContext, LockError, LockRequest, WaitError};
use futures_util::future::join_all;
use parking_lot::Mutex;

use super::served::{BAKERY, HOMES, LONG, MUSIC, Resource, Served, TABLES};

/// setLockTableName and setLockTimeout of the context.
fn context(client: &Client, table: &str) -> LockContext {
    LockContext::new(client)
        .lock_table_name(table)
        .lock_timeout(LONG)
}

/// That timeout in tests of what is not obtained.
const SHORT: Duration = Duration::from_millis(200);

/// The user table of the first sample, where two may ask before either of them writes.
#[derive(Clone, Default)]
struct Users(Arc<Mutex<BTreeMap<String, String>>>);

impl Users {
    async fn exists(&self, name: &str) -> bool {
        let exists = self.0.lock().contains_key(name);
        tokio::time::sleep(Duration::from_millis(5)).await;
        exists
    }

    fn set_email(&self, name: &str, email: &str) {
        let before = self.0.lock().insert(name.to_owned(), email.to_owned());
        assert_eq!(before, None, "a user was overwritten");
    }
}

/// The first sample, as a function.
async fn register(
    context: &LockContext,
    users: &Users,
    (name, email): (&str, &str),
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // Lock the user table in the constructor.
    let _lock = Lock::new(context, "user_table").await?;
    if users.exists(name).await {
        // Throw. The destructor unlocks.
        return Err("a user with that name exists".into());
    }
    users.set_email(name, email);
    // The destructor unlocks here as well.
    Ok(())
}

#[tokio::test]
async fn a_user_is_made_once_however_many_register() {
    let served = Served::start();
    for table in TABLES {
        let (users, failed) = (Users::default(), Arc::new(Mutex::new(Vec::new())));
        served
            .contend(5, |client| {
                let (users, failed) = (users.clone(), Arc::clone(&failed));
                async move {
                    let context = context(&client, table);
                    let registered = register(&context, &users, ("snap", "snap@example.com"));
                    if let Err(error) = registered.await {
                        failed.lock().push(error.to_string());
                    }
                }
            })
            .await;
        let expected = vec!["a user with that name exists"; 4];
        assert_eq!(*failed.lock(), expected, "{table}");
        served.until_free(table, "user_table").await;
    }
}

/// The second and the third sample: the bakery in memory, and in Cassandra. Of both the user sees lock, work, unlock.
#[tokio::test]
async fn processes_that_lock_and_unlock_a_name_take_their_turns() {
    let served = Served::start();
    for table in TABLES {
        let resource = Resource::default();
        served
            .contend(5, |client| {
                let resource = resource.clone();
                async move {
                    // An object without a name locks nothing yet.
                    let mut lock = Lock::new(&context(&client, table), "").await.unwrap();
                    for _ in 0..4 {
                        // entering := true, ticket := the highest and one, entering := false; then wait for all that enter,
                        // and for all smaller tickets. Equal tickets: the smaller host, then the smaller process.
                        assert!(lock.lock("object_name").await.unwrap());
                        resource.update().await;
                        // Drop the ticket.
                        lock.unlock().await.unwrap();
                    }
                }
            })
            .await;
        assert_eq!(resource.updates(), 20, "{table}");
    }
}

#[tokio::test]
async fn a_name_is_the_table_and_the_row_and_excludes_no_other_row() {
    let served = Served::start();
    for table in TABLES {
        let context = context(&served.client, table).lock_timeout(SHORT);
        let object_name = |row: &str| format!("users::{row}");
        let snap = Lock::new(&context, object_name("snap")).await.unwrap();
        let crackle = Lock::new(&context, object_name("crackle")).await.unwrap();
        assert!(snap.is_locked() && crackle.is_locked(), "{table}");
        // The row need not exist, and other users of the service lock it by the same name.
        assert!(!served.is_free(table, "users::snap").await);
        assert!(served.is_free(table, "users::pop").await);
    }
}

#[tokio::test]
async fn a_lock_that_is_taken_is_false_after_the_timeout_and_the_constructor_fails() {
    let served = Served::start();
    for table in TABLES {
        let context = context(&served.client, table).lock_timeout(SHORT);
        let holder = Lock::new(&context, "users::snap").await.unwrap();
        // The constructor throws.
        let refused = Lock::new(&context, "users::snap").await.unwrap_err();
        assert!(
            matches!(refused, LockError::Wait(WaitError::TimedOut { .. })),
            "{table}: {refused}"
        );
        // With an empty name it cannot, and lock() returns false.
        let mut other = Lock::new(&context, "").await.unwrap();
        assert_eq!(other.lock("users::snap").await, Ok(false), "{table}");
        assert!(!other.is_locked() && holder.is_locked(), "{table}");
        // No ticket of those that gave up is left.
        let queue = served.queue(table, "users::snap").await;
        assert_eq!(queue.waiters, [""; 0], "{table}");
    }
}

#[tokio::test]
async fn an_empty_name_unlocks_and_another_name_unlocks_the_one_before() {
    let served = Served::start();
    for table in TABLES {
        let mut lock = Lock::new(&context(&served.client, table), "one")
            .await
            .unwrap();
        assert_eq!(lock.lock("two").await, Ok(true), "{table}");
        assert!(served.is_free(table, "one").await, "{table}");
        assert!(!served.is_free(table, "two").await, "{table}");
        assert_eq!(lock.lock("").await, Ok(false), "{table}");
        assert!(served.is_free(table, "two").await, "{table}");
        lock.unlock().await.unwrap();
    }
}

#[tokio::test]
async fn a_scope_that_ends_by_an_error_or_a_panic_unlocks() {
    let served = Served::start();
    for table in TABLES {
        let context = context(&served.client, table);
        let (users, snap) = (Users::default(), ("snap", "snap@example.com"));
        register(&context, &users, snap).await.unwrap();
        register(&context, &users, snap).await.unwrap_err();

        let panics = {
            let context = context.clone();
            tokio::spawn(async move {
                let _lock = Lock::new(&context, "user_table").await.unwrap();
                panic!("on purpose");
            })
        };
        assert!(panics.await.unwrap_err().is_panic());
        let lock = Lock::new(&context, "user_table").await.unwrap();
        assert!(lock.is_locked());
    }
}

#[tokio::test]
async fn names_are_text_or_bytes_and_no_two_are_one() {
    let served = Served::start();
    for table in TABLES {
        let context = context(&served.client, table).lock_timeout(SHORT);
        let names: [&[u8]; 4] = ["größe".as_bytes(), b"%FF", b"\xff", b"\0key\n"];
        let locks = join_all(names.map(|name| Lock::new(&context, name))).await;
        assert!(
            locks.iter().flatten().all(Lock::is_locked) && locks.iter().all(Result::is_ok),
            "{table}"
        );
        let listed = served.client.list_locks(table, "", false, 100).await;
        let mut keys: Vec<String> = listed.unwrap().into_iter().map(|lock| lock.key).collect();
        keys.sort();
        assert_eq!(keys, ["%00key%0A", "%25FF", "%FF", "größe"], "{table}");
    }
}

/// setLockHostName, and the process's id. The list of hosts is not needed.
#[tokio::test]
async fn operators_see_the_host_and_the_process() {
    let served = Served::start();
    for table in TABLES {
        let context = context(&served.client, table).lock_host_name("host-7");
        let _lock = Lock::new(&context, "users::snap").await.unwrap();
        let described = served.client.describe_lock(table, "users::snap", 1).await;
        let holder = described.unwrap().holders.remove(0);
        let expected = format!("host-7/{}", std::process::id());
        assert_eq!(holder.owner, expected, "{table}");
    }
}

/// Its documented bug: a process that dies makes all others time out until its TTL has passed. So it is here; that is all.
#[tokio::test]
async fn a_process_that_dies_keeps_its_lock_for_its_ttl() {
    let served = &Served::start();
    let each = TABLES.map(|table| async move {
        let holder = served.holding_process(table, "users::snap", "4s");
        let context = context(&served.client, table).lock_timeout(SHORT);
        let mut lock = Lock::new(&context, "").await.unwrap();
        drop(holder);
        assert_eq!(lock.lock("users::snap").await, Ok(false), "{table}");
        let locked = async { while !lock.lock("users::snap").await.unwrap() {} };
        tokio::time::timeout(LONG, locked).await.unwrap();
        assert!(lock.is_locked(), "{table}");
    });
    join_all(each).await;
}

/// What the original does not have.
#[tokio::test]
async fn a_lock_outlives_its_ttl_while_its_process_lives_and_has_a_token_and_a_value_where_there_is_a_fence()
 {
    let served = Served::start();
    let ttl = Duration::from_secs(3);
    let mut locks = Vec::new();
    for table in TABLES {
        let context = context(&served.client, table).lock_ttl(ttl);
        locks.push(Lock::new(&context, "users::snap").await.unwrap());
    }
    // Until the promises that they began with have ended.
    let promised = |lock: &Lock| lock.guard().unwrap().valid_until().unwrap();
    let promised = locks.iter().map(promised).max().unwrap();
    while served.client.clock().now() <= promised {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (mut lock, table) in locks.into_iter().zip(TABLES) {
        assert!(lock.is_locked(), "{table}");
        let guard = lock.guard().unwrap();
        let token = guard.fencing_token();
        let written = guard.put("charged").await;
        lock.unlock().await.unwrap();
        let request = LockRequest::new("users::snap").table(table).wait(LONG);
        let next = served.client.lock(request).await.unwrap();
        if [HOMES, MUSIC].contains(&table) {
            written.unwrap();
            assert!(next.fencing_token() > token, "{table}");
            assert_eq!(next.get().await.unwrap().unwrap(), "charged", "{table}");
        } else {
            assert_eq!(token, 0, "{table}");
            assert_eq!(written.is_err(), table == BAKERY, "{table}: {written:?}");
        }
    }
}
