//! The page about header fields has every dialect with the fields that it writes.

use tollgate_http::HeaderDialect;

#[test]
fn every_dialect_is_on_the_page_with_its_fields() {
    let page = include_str!("../../../docs/reference/headers.md").to_lowercase();
    for dialect in HeaderDialect::ALL {
        let start = format!("| `{dialect}`");
        let row = page.lines().find(|line| line.starts_with(&start));
        let row = row.unwrap_or_else(|| panic!("{dialect} is in no table"));
        for field in dialect.field_names() {
            assert!(row.contains(&format!("`{field}`")), "{field}: {row}");
        }
    }
}
