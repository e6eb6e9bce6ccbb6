//! The page in a browser: what it shows, what moves, and what its keys do.

use std::path::Path;
use std::time::Duration;

use fermata_client::{Client, LockGuard, LockRequest, Session, SessionRequest};
use serde_json::json;
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::super::metrics::{acquire, release};
use super::super::process::Serve;
use super::webdriver::{Browser, ENTER, ESCAPE, TAB, is_missing};
use super::{Secured, queue};

/// A key that must stay a text.
const HOSTILE: &str = "<img src=x onerror=alert(1)>";

fn url(serve: &Serve) -> String {
    format!("http://127.0.0.1:{}/", serve.http_port)
}

fn http() -> Serve {
    Serve::with(&[("HTTP__LISTEN", "127.0.0.1:0")])
}

/// The numbers of the cards, in the order that they are shown in.
const SHOWN: &str = r##"[...document.querySelectorAll("#picture .entry:not(.gone)")]
    .map((card) => [card.getBoundingClientRect().top, card.getBoundingClientRect().left, card.querySelector(".seq").textContent])
    .sort((one, other) => one[0] - other[0] || one[1] - other[1]).map((card) => card[2]).join(" ")"##;

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_is_shown_and_moves_on_when_its_holder_leaves() {
    if is_missing() {
        return;
    }
    let serve = http();
    let mut lock_refs = Vec::new();
    for owner in ["ann", "bob", "<b>cyd</b>", "dan\u{202e}"] {
        lock_refs.push(queue(&serve, None, HOSTILE, owner).await);
    }
    let mut client = serve.client();
    let held = acquire(&mut client, &lock_refs[0]).await;
    let browser = block_in_place(|| {
        let browser = Browser::open(&url(&serve));
        browser.until(
            r##"document.querySelector("#waits td button")?.textContent.includes("onerror")"##,
        );
        assert_eq!(
            browser.run(r##"return document.querySelector("#waits td:nth-child(2)").textContent"##),
            "3"
        );
        browser.tab_to(r##"focused.textContent.includes("onerror")"##);
        browser.press(ENTER);
        browser.until(&format!("{SHOWN} === '#1 #2 #3 #4'"));
        let facts = browser.run(r##"return document.getElementById("queue-facts").textContent"##);
        assert!(
            facts
                .as_str()
                .unwrap()
                .starts_with(&format!("default/{HOSTILE} · 3 waiting")),
            "{facts}"
        );
        // A row that is shown again is the same one, so the focus stays.
        browser.tab_to(r##"focused.getAttribute("aria-label")?.startsWith("End default/") && focused.closest("tr").rowIndex === 2"##);
        browser.run(
            r##"window.second = document.querySelectorAll("#picture .entry")[1];
               window.places = new Set();
               (function look() { places.add(Math.round(second.getBoundingClientRect().left)); requestAnimationFrame(look); })();"##,
        );
        browser
    });
    release(&mut client, held).await.unwrap();
    block_in_place(|| {
        browser.until(&format!("{SHOWN} === '#2 #3 #4'"));
        // It slides there.
        browser.until("places.size > 5");
        browser.until(r##"second.classList.contains("holder")"##);
        assert_eq!(
            browser.run(r##"return document.activeElement.closest("tr")?.rowIndex"##),
            1
        );
        browser.until(
            r##"document.getElementById("told").textContent.includes("#2 holds it, 2 waiting")"##,
        );
        // Names of keys and clients are texts.
        assert_eq!(
            browser.run(r##"return document.querySelectorAll("img, #shown b, [onerror]").length"##),
            4,
            "the icon and the titles of plots"
        );
        let entries = browser.run("return document.getElementById('entries').innerText");
        let entries = entries.as_str().unwrap();
        assert!(
            entries.contains("<b>cyd</b>") && entries.contains(r"dan\u{202e}"),
            "{entries}"
        );
        // The address leads to the same key again.
        browser.run("location.reload()");
        browser.until(&format!("{SHOWN} === '#2 #3 #4'"));
        let motion =
            "return getComputedStyle(document.querySelector('#picture .entry')).transitionDuration";
        assert_eq!(browser.run(motion), "0.6s, 0.5s");
        browser.likes("prefers-reduced-motion", "reduce");
        assert_eq!(browser.run(motion), "0s");
        assert_eq!(browser.complaints(&[]), Vec::<String>::new());
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_ended_by_the_keyboard_alone_after_a_login() {
    if is_missing() {
        return;
    }
    let secured = Secured::start();
    let serve = &secured.serve;
    for owner in ["holder", "waiter"] {
        queue(serve, Some(&secured.worker), "orders-42", owner).await;
    }
    block_in_place(|| {
        let browser = Browser::open(&format!("{}#default/orders-42", url(serve)));
        let log_in = |token: &str| {
            browser.tab_to("focused.id === 'token'");
            browser.press(token);
            browser.press(ENTER);
        };
        browser.until("!document.getElementById('login').hidden");
        log_in("fermata_wrong");
        browser.until("document.getElementById('login-problem').textContent.includes('unknown')");
        log_in(&secured.worker.token);
        // A worker may see the queue, and no more.
        browser.until(&format!("{SHOWN} === '#1 #2'"));
        browser.until("document.getElementById('sessions').innerText.includes('admin')");
        browser.tab_to("focused.id === 'logout'");
        browser.press(ENTER);
        browser.until("!document.getElementById('login').hidden");
        log_in(&secured.ops.token);
        browser.until(&format!("{SHOWN} === '#1 #2'"));

        let open = || {
            browser.tab_to("focused.getAttribute('aria-label') === 'End default/orders-42#1'");
            browser.press(ENTER);
            browser.until("document.getElementById('force').open && document.activeElement.id === 'force-reason'");
        };
        open();
        browser.press(ESCAPE);
        browser.until("!document.getElementById('force').open");
        open();
        browser.press("it hangs");
        browser.press(TAB);
        browser.press("ann");
        browser.press(TAB);
        browser.press("orders-4");
        assert_eq!(
            browser.run("return document.getElementById('force-go').disabled"),
            true
        );
        browser.press(ENTER);
        browser.press("2");
        browser.press(ENTER);
        browser.until("document.getElementById('force-result').textContent === 'default/orders-42#1 has ended: it held default/orders-42.'");
        browser.press(ENTER);
        browser.until("!document.getElementById('force').open");
        browser.until(&format!("{SHOWN} === '#2'"));
        browser.until("document.getElementById('ended-list').innerText.includes('FORCED · by ann · it hangs')");
        assert_eq!(browser.complaints(&["401", "403"]), Vec::<String>::new());
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_is_granted_under_the_dialog_is_confirmed_again_as_a_holder() {
    if is_missing() {
        return;
    }
    let serve = http();
    // A key that an address written by hand does not encode.
    const KEY: &str = "100%/a";
    let first = queue(&serve, None, KEY, "first").await;
    queue(&serve, None, KEY, "second").await;
    let mut client = serve.client();
    let held = acquire(&mut client, &first).await;
    let browser = block_in_place(|| {
        let browser = Browser::open(&format!("{}#default/{KEY}", url(&serve)));
        browser.until(&format!("{SHOWN} === '#1 #2'"));
        browser.tab_to("focused.getAttribute('aria-label')?.startsWith('End default/') && focused.closest('tr').rowIndex === 2");
        browser.press(ENTER);
        browser.until("document.getElementById('force-title').textContent === 'End a waiter'");
        browser.press("it hangs");
        browser.press(TAB);
        browser.press("ann");
        browser.press(TAB);
        browser.press(KEY);
        browser.until("!document.getElementById('force-go').disabled");
        browser
    });
    release(&mut client, held).await.unwrap();
    block_in_place(|| {
        browser.until("document.getElementById('force-title').textContent === 'End the holder'");
        browser.until("document.getElementById('force-go').disabled");
        browser.press(KEY);
        browser.press(ENTER);
        browser.until("document.getElementById('force-result').textContent.endsWith('has ended: it held default/100%/a.')");
        assert_eq!(browser.complaints(&[]), Vec::<String>::new());
    });
}

/// Keys with queues and sessions, as in a shop.
async fn shop(serve: &Serve) -> Vec<(Session, LockGuard)> {
    let client = Client::connect([serve.endpoint()]).unwrap();
    let mut guards = Vec::new();
    for owner in ["billing-7f9c", "reports-nightly"] {
        let request = SessionRequest::new().owner(owner);
        let session = client.open_session(request).await.unwrap();
        let guard = session.lock(format!("jobs/{owner}")).await.unwrap();
        guards.push((session, guard));
    }
    for at in 0..31 {
        queue(
            serve,
            None,
            "orders/2026/invoices-of-a-customer-with-a-long-name",
            &format!("worker-{at:02}.eu-central"),
        )
        .await;
    }
    for at in 0..3 {
        queue(serve, None, "stock", &format!("till-{at}")).await;
    }
    // Names without a place to break.
    let owner = "billing-worker-7f9c.ip-10-0-12-34.eu-central-1.compute.internal";
    for _ in 0..2 {
        queue(serve, None, "ledger_service_production_eu_0", owner).await;
    }
    guards
}

fn file_name(width: u32, is_dark: bool) -> String {
    let scheme = if is_dark { "dark" } else { "light" };
    format!("console-{width}-{scheme}.png")
}

/// Writes a picture as PNG.
fn write(path: &Path, picture: &str) {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0u32, 0, Vec::new());
    for digit in picture.bytes().filter(|digit| *digit != b'=') {
        let value = DIGITS.iter().position(|one| *one == digit).unwrap();
        bits = bits << 6 | u32::try_from(value).unwrap();
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).unwrap());
        }
    }
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_readable_on_a_phone_and_a_screen_in_light_and_dark() {
    if is_missing() {
        return;
    }
    let serve = http();
    let _guards = shop(&serve).await;
    block_in_place(|| {
        let browser = Browser::open(&format!(
            "{}#default/orders%2F2026%2Finvoices-of-a-customer-with-a-long-name",
            url(&serve)
        ));
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        browser.until("document.querySelectorAll('#picture .entry').length > 3");
        browser.until("document.querySelectorAll('#sessions tbody tr').length === 2");
        browser.until("document.querySelectorAll('#waits tbody tr').length >= 2");
        browser.until("document.querySelector('.plot path')");
        for (width, height) in [(360, 800), (1000, 900), (1280, 900)] {
            for is_dark in [false, true] {
                browser.look(width, height, is_dark);
                // The picture is drawn anew within a second.
                std::thread::sleep(Duration::from_millis(1_700));
                let name = file_name(width, is_dark);
                write(&directory.join(&name), &browser.picture());
                let overflow = "const page = document.documentElement; return page.scrollWidth - page.clientWidth";
                assert_eq!(browser.run(overflow), 0, "{name}");
                let outside = r##"return [...document.querySelectorAll("#shown *")].filter((one) => one.checkVisibility()
                    && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 90))"##;
                assert_eq!(browser.run(outside), json!([]), "{name}");
                assert_eq!(
                    browser.run(include_str!("contrast.js")),
                    json!([]),
                    "{name}"
                );
                browser.run("document.querySelector('#entries td button').click()");
                browser.until("document.getElementById('force').open");
                assert_eq!(
                    browser.run(include_str!("contrast.js")),
                    json!([]),
                    "{name}, the dialog"
                );
                assert_eq!(browser.run(overflow), 0, "{name}, the dialog");
                write(
                    &directory.join(format!("dialog-{name}")),
                    &browser.picture(),
                );
                browser.press(ESCAPE);
            }
        }
        assert_eq!(browser.complaints(&[]), Vec::<String>::new());
    });
}

/// For docs/console.md: `FERMATA_PICTURES=docs/pictures cargo test --test serve pictures_of -- --ignored`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "makes the pictures of a document, in ten minutes"]
async fn pictures_of_a_busy_console() {
    let serve = http();
    let client = Client::connect([serve.endpoint()]).unwrap();
    let busy = tokio::spawn(async move {
        for round in 0u64.. {
            // Rates that rise and fall.
            let pause = 20 + 60 * (round / 80 % 5);
            let seat = LockRequest::new(format!("seats/{}", round % 3)).owner("booking");
            let guard = client.lock(seat.clone()).await.unwrap();
            let next = client.lock(seat);
            let after = async {
                sleep(Duration::from_millis(pause)).await;
                guard.release().await.unwrap();
            };
            let (next, ()) = tokio::join!(next, after);
            next.unwrap().release().await.unwrap();
        }
    });
    sleep(Duration::from_secs(9 * 60)).await;
    let _guards = shop(&serve).await;
    sleep(Duration::from_secs(60)).await;
    block_in_place(|| {
        let browser = Browser::open(&format!(
            "{}#default/orders%2F2026%2Finvoices-of-a-customer-with-a-long-name",
            url(&serve)
        ));
        let directory = std::env::var("FERMATA_PICTURES").unwrap();
        let directory = Path::new(&directory);
        for (width, height, is_dark) in
            [(1280, 1600, false), (1280, 1600, true), (360, 1600, false)]
        {
            browser.look(width, height, is_dark);
            std::thread::sleep(Duration::from_secs(7));
            write(
                &directory.join(file_name(width, is_dark)),
                &browser.picture(),
            );
        }
    });
    busy.abort();
}
