/* SPDX-License-Identifier: Apache-2.0 */
/* What servers say of folders, what URLs mean, and blocks that are kept: without a server. */
#include "check.h"

#include "remote/azure_sign.h"
#include "remote/block_cache.h"
#include "remote/listing.h"
#include "remote/remote_place.h"

static reshard_error err;

static void name_is(const struct listing_entry *entry, const char *name)
{
    assert_int_equal(entry->name.size, strlen(name));
    assert_memory_equal(entry->name.data, name, entry->name.size);
}

static void text_is(struct str text, const char *wanted)
{
    assert_int_equal(text.size, strlen(wanted));
    assert_memory_equal(text.data ? text.data : "", wanted, text.size);
}

/* ---- S3 ---- */

#define S3_OBJECT(key, size) "<Contents><Key>" key "</Key><ETag>&quot;e1&quot;</ETag><Size>" size "</Size></Contents>"

#define S3_ENCODED "<ListBucketResult><EncodingType>url</EncodingType>"
#define S3_END "</ListBucketResult>"
#define AZURE_END "</EnumerationResults>"

TEST(objects_and_folders_of_s3)
{
    struct listing listing = { 0 };
    struct str next;
    const char *answer = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"x\"><EncodingType>url</EncodingType>"
                         "<Prefix>d%2F</Prefix><IsTruncated>false</IsTruncated>"
                         "<Contents><Key>d/b+c%2Bd%C3%A9</Key><ETag>e2</ETag><Size>18446744073709551615</Size></Contents>"
                         S3_OBJECT("d/a", "0")
                         "<Contents><Key>d/</Key><Size>0</Size></Contents><CommonPrefixes><Prefix>d/f%26/</Prefix></CommonPrefixes>"
                         "</ListBucketResult>";
    CHECK_OK(listing_take_s3(str_of(answer), &listing, &next, &err));
    assert_int_equal(next.size, 0);
    listing_sort(&listing);
    assert_int_equal(listing.count, 3);
    name_is(&listing.entries[0], "d/a");
    assert_true(listing.entries[0].has_bytes && !listing.entries[0].is_folder && listing.entries[0].bytes == 0);
    text_is(listing.entries[0].etag, "\"e1\"");
    name_is(&listing.entries[1], "d/b c+d\xC3\xA9");
    assert_true(listing.entries[1].bytes == UINT64_MAX);
    text_is(listing.entries[1].etag, "\"e2\"");
    name_is(&listing.entries[2], "d/f&");
    assert_true(listing.entries[2].is_folder);
    assert_ptr_equal(listing_find(&listing, STR("d/f&")), &listing.entries[2]);
    assert_null(listing_find(&listing, STR("d/f")));
    listing_release(&listing);
    assert_null(listing_find(&listing, STR("d/a")));
    /* Who does not say that names are encoded has them as they are. */
    CHECK_OK(listing_take_s3(STR("<ListBucketResult>" S3_OBJECT("a%41+&amp;", "1") S3_END), &listing, &next, &err));
    name_is(&listing.entries[0], "a%41+&");
    listing_release(&listing);
}

TEST(a_list_of_s3_goes_on)
{
    struct listing listing = { 0 };
    struct str next;
    const char *more = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b&lt;=</NextContinuationToken>"
                       S3_OBJECT("a", "1") "</ListBucketResult>";
    CHECK_OK(listing_take_s3(str_of(more), &listing, &next, &err));
    text_is(next, "a&b<=");
    CHECK_OK(listing_take_s3(STR("<ListBucketResult>" S3_OBJECT("a", "2") S3_OBJECT("0", "3") S3_END), &listing, &next, &err));
    assert_int_equal(next.size, 0);
    assert_int_equal(listing.count, 3);
    listing_sort(&listing);
    assert_int_equal(listing.count, 2);
    name_is(&listing.entries[0], "0");
    assert_true(listing.entries[1].bytes == 1); /* of two the first */
    listing_release(&listing);
}

#define AZURE_BLOB(name, properties) "<Blob><Name>" name "</Name><Properties>" properties "</Properties></Blob>"

TEST(objects_and_folders_of_azure)
{
    struct listing listing = { 0 };
    struct str next;
    CHECK_OK(listing_take_azure(STR("\xef\xbb\xbf<?xml version=\"1.0\"?><EnumerationResults ContainerName=\"c\"><Blobs>"
                                    AZURE_BLOB("d", "<ResourceType>directory</ResourceType><Content-Length>0</Content-Length>")
                                    "<BlobPrefix><Name>d/</Name><Properties><ResourceType>directory</ResourceType></Properties>"
                                    "</BlobPrefix>"
                                    AZURE_BLOB("empty", "<ResourceType>directory</ResourceType><Content-Length>0</Content-Length>")
                                    AZURE_BLOB("a&amp;b", "<Content-Length>7</Content-Length><Etag>0x8D1</Etag>")
                                    AZURE_BLOB("c", "<Etag>\"0x8D2\"</Etag><Content-Length>8</Content-Length>")
                                    AZURE_BLOB("folder/", "<Content-Length>0</Content-Length>")
                                    "</Blobs><NextMarker>2!4&amp;</NextMarker></EnumerationResults>"), &listing, &next, &err));
    text_is(next, "2!4&");
    listing_sort(&listing);
    assert_int_equal(listing.count, 3);
    name_is(&listing.entries[0], "a&b");
    assert_int_equal(listing.entries[0].bytes, 7);
    text_is(listing.entries[0].etag, "\"0x8D1\"");
    name_is(&listing.entries[1], "c");
    text_is(listing.entries[1].etag, "\"0x8D2\"");
    name_is(&listing.entries[2], "d");
    assert_true(listing.entries[2].is_folder && !listing.entries[0].is_folder);
    CHECK_OK(listing_take_azure(STR("<EnumerationResults><Blobs /><NextMarker /></EnumerationResults>"), &listing, &next, &err));
    assert_int_equal(next.size, 0);
    static const char *const bad[] = { "", "<ListBucketResult></ListBucketResult>", "<EnumerationResults>"
                                       "<Blob><Name Encoded=\"true\">%FF</Name><Content-Length>1</Content-Length></Blob>" AZURE_END,
                                       "<EnumerationResults><Blob><Name>a</Name></Blob>" AZURE_END,
                                       "<EnumerationResults><Blobs>" AZURE_BLOB("a", "<Content-Length>7</Content-Length>") };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        CHECK_FAILS(listing_take_azure(str_of(bad[i]), &listing, &next, &err), RESHARD_ERR_FORMAT);
    listing_release(&listing);
}

/* Some programs put an empty object where a folder is, others an object of values: that one is seen. */
TEST(an_empty_object_gives_way_to_its_folder)
{
    struct listing listing = { 0 };
    struct str next;
    CHECK_OK(listing_take_s3(STR(S3_ENCODED S3_OBJECT("a", "0") S3_OBJECT("b", "1") S3_OBJECT("c", "0") S3_OBJECT("c", "0")
                                 "<CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes>"
                                 "<CommonPrefixes><Prefix>b/</Prefix></CommonPrefixes>" S3_END), &listing, &next, &err));
    listing_sort(&listing);
    assert_int_equal(listing.count, 3);
    assert_true(listing.entries[0].is_folder);
    assert_true(!listing.entries[1].is_folder && listing.entries[1].bytes == 1);
    assert_true(!listing.entries[2].is_folder && listing.entries[2].number == 2);
    listing_release(&listing);
}

TEST(what_is_no_list_of_s3)
{
    static const char *const bad[] = {
        "", "<html>", "<Error><Code>x</Code></Error>", "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key></Contents>" S3_END, "<ListBucketResult>" S3_OBJECT("a", "-1") S3_END,
        "<ListBucketResult>" S3_OBJECT("a", "1 ") S3_END, "<ListBucketResult>" S3_OBJECT("a", "18446744073709551616") S3_END,
        S3_ENCODED S3_OBJECT("%4", "1") S3_END, S3_ENCODED S3_OBJECT("%zz", "1") S3_END, S3_ENCODED S3_OBJECT("a%", "1") S3_END,
        "</ListBucketResult><ListBucketResult>", S3_ENCODED S3_OBJECT("a", "1"), S3_ENCODED S3_OBJECT("a", "1") "</ListBucketResul",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct listing listing = { 0 };
        struct str next;
        CHECK_FAILS(listing_take_s3(str_of(bad[i]), &listing, &next, &err), RESHARD_ERR_FORMAT);
        assert_int_equal(listing.count, 0);
        listing_release(&listing);
    }
}

TEST(characters_of_xml)
{
    static const char *const rows[][2] = {
        { "&#38;&#x26;&#x0026;&#60;", "&&&<" },           { "&#233;&#xE9;&#x65e5;", "\xC3\xA9\xC3\xA9\xE6\x97\xA5" },
        { "&#x1F600;", "\xF0\x9F\x98\x80" },             { "&amp;#38;&amp;amp;", "&#38;&amp;" },
        { "&#0;&#x0;&#;&#x;", "&#0;&#x0;&#;&#x;" },       { "&#xD800;&#x110000;", "&#xD800;&#x110000;" },
        { "&#-1;&#x 1;&#1 ;", "&#-1;&#x 1;&#1 ;" },       { "&#18446744073709551654;", "&#18446744073709551654;" },
        { "&nbsp;&&;a&amp", "&nbsp;&&;a&amp" },           { "&lt;&gt;&quot;&apos;", "<>\"'" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct listing listing = { 0 };
        struct str next;
        char answer[400];
        snprintf(answer, sizeof(answer), "<ListBucketResult><Contents><Key>%s</Key><Size>1</Size></Contents>" S3_END, rows[i][0]);
        CHECK_OK(listing_take_s3(str_of(answer), &listing, &next, &err));
        name_is(&listing.entries[0], rows[i][1]);
        listing_release(&listing);
    }
}

TEST(texts_of_elements)
{
    text_is(element_text(STR("<a>1</a><b>2</b><b>3</b>"), "b"), "2");
    text_is(element_text(STR("<a>1"), "a"), "");
    text_is(element_text(STR("1</a>"), "a"), "");
    text_is(element_text(STR(""), "a"), "");
    text_is(element_text((struct str){ NULL, 0 }, "a"), "");
    text_is(element_text(STR("<ab>1</ab>"), "a"), "");
}

/* ---- a hub ---- */

TEST(files_and_folders_of_a_hub)
{
    struct listing listing = { 0 };
    const char *answer = "[{\"type\":\"directory\",\"oid\":\"1\",\"size\":0,\"path\":\"d\"},"
                         "{\"path\":\"d/m\\u00e9\",\"lfs\":{\"size\":3,\"path\":\"no\",\"type\":\"x\"},\"size\":70,"
                         "\"type\":\"file\",\"oid\":\"2\"},{\"type\":\"file\",\"path\":\"c\",\"size\":-1},"
                         "{\"type\":\"file\",\"path\":\"b\",\"size\":\"7\",\"more\":[[{}]]}]";
    CHECK_OK(listing_take_hub(str_of(answer), &listing, &err));
    CHECK_OK(listing_take_hub(STR(" [ ] "), &listing, &err));
    listing_sort(&listing);
    assert_int_equal(listing.count, 4);
    name_is(&listing.entries[0], "b");
    assert_false(listing.entries[0].has_bytes || listing.entries[1].has_bytes);
    assert_true(listing.entries[2].is_folder);
    name_is(&listing.entries[3], "d/m\xC3\xA9");
    assert_true(listing.entries[3].has_bytes && listing.entries[3].bytes == 70 && !listing.entries[3].is_folder);
    assert_int_equal(listing.entries[3].etag.size, 0);
    listing_release(&listing);
}

TEST(what_is_no_list_of_a_hub)
{
    static const char *const bad[] = { "", "{}", "[", "[1]", "[{}]", "[{\"type\":\"file\"}]", "[{\"type\":\"file\",\"path\":\"\"}]",
                                       "[{\"path\":\"a\"}]", "[{\"type\":\"link\",\"path\":\"a\"}]", "[{\"type\":\"file\",\"path\":\"a\"}",
                                       "[{\"type\":\"file\",\"path\":7}]", "<html>", "[][]", "[]x",
                                       "[{\"type\":\"file\",\"path\":\"a\"}]]" };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct listing listing = { 0 };
        CHECK_FAILS(listing_take_hub(str_of(bad[i]), &listing, &err), RESHARD_ERR_FORMAT);
        listing_release(&listing);
    }
}

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

TEST(commits_of_a_hub)
{
    static const char *const good[] = { "{\"sha\":\"" COMMIT "\"}",
                                        " {\"id\":\"o/r\",\"siblings\":[{\"sha\":\"x\"}],\"sha\":\"" COMMIT "\",\"a\":{}} " };
    static const char *const bad[] = { "", "{}", "[]", "\"" COMMIT "\"", "{\"sha\":7}", "{\"sha\":\"main\"}", "{\"sha\":\"\"}",
                                       "{\"a\":{\"sha\":\"" COMMIT "\"}}", "{\"sha\":\"" COMMIT "\"", "{\"sha\":\"" COMMIT "\"}}",
                                       "{\"sha\":\"" COMMIT "0\"}", "{\"sha\":\"" COMMIT "/../x\"}" };
    struct buffer commit = { 0 };
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        CHECK_OK(listing_take_commit(str_of(good[i]), &commit, &err));
        text_is(buffer_str(&commit), COMMIT);
        buffer_clear(&commit);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        CHECK_FAILS(listing_take_commit(str_of(bad[i]), &commit, &err), RESHARD_ERR_FORMAT);
        buffer_clear(&commit);
    }
    buffer_release(&commit);
}

/* ---- a page ---- */

TEST(links_of_a_page)
{
    struct listing listing = { 0 };
    const char *page = "<A HREF='d/'>x</A> href=\"a%20b&amp;c\" href=\"./e\" href=\"\" href=x href=\"../\" href=\"..\" "
                       "href=\".\" href=\"/f\" href=\"g/h\" href=\"?C=N\" href=\"i#j\" href=\"k?l\" href=\"http://m\" href=\"%2e%2e\" "
                       "href=\"n%2Fo\" href=\"p%5Cq\" href=\"%00\" href=\"%zz\" href=\"/\" href=\"//\" href=\"./\" "
                       "href=\"a%20b&amp;c\" href=\"open";
    CHECK_OK(listing_take_page(str_of(page), &listing, &err));
    listing_sort(&listing);
    assert_int_equal(listing.count, 3);
    name_is(&listing.entries[0], "a b&c");
    name_is(&listing.entries[1], "d");
    name_is(&listing.entries[2], "e");
    assert_true(listing.entries[1].is_folder && !listing.entries[0].is_folder && !listing.entries[2].is_folder);
    assert_false(listing.entries[0].has_bytes);
    CHECK_OK(listing_take_page(STR(""), &listing, &err));
    CHECK_OK(listing_take_page(STR("href="), &listing, &err));
    CHECK_OK(listing_take_page(STR("href=\""), &listing, &err));
    assert_int_equal(listing.count, 3);
    listing_release(&listing);
}

/* ---- encoding ---- */

TEST(every_byte_is_encoded_and_back)
{
    char bytes[256];
    for (int i = 0; i < 256; i++)
        bytes[i] = (char)i;
    const struct str all = { bytes, sizeof(bytes) };
    for (int keeps = 0; keeps < 2; keeps++) {
        struct buffer encoded = { 0 }, decoded = { 0 };
        url_encode(all, keeps, &encoded);
        assert_int_equal(encoded.size, 66 + 190 * 3 - (keeps ? 2 : 0));
        assert_true(url_decode(buffer_str(&encoded), true, &decoded));
        assert_int_equal(decoded.size, 256);
        assert_memory_equal(decoded.data, bytes, 256);
        buffer_release(&encoded);
        buffer_release(&decoded);
    }
    struct buffer text = { 0 };
    url_encode(STR("a/b c+\xC3\xA9~"), true, &text);
    text_is(buffer_str(&text), "a/b%20c%2B%C3%A9~");
    buffer_clear(&text);
    url_encode(STR("a/b"), false, &text);
    text_is(buffer_str(&text), "a%2Fb");
    buffer_release(&text);
}

TEST(what_is_decoded)
{
    static const struct {
        const char *text, *form, *path; /* NULL: is refused */
    } rows[] = { { "a+b", "a b", "a+b" }, { "%41%6a%6A", "Ajj", "Ajj" }, { "%", NULL, NULL }, { "%4", NULL, NULL },
                 { "a%4g", NULL, NULL }, { "%g4", NULL, NULL }, { "%25", "%", "%" },           { "%2541", "%41", "%41" }, { "", "", "" } };
    for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(*rows); i++) {
        struct buffer out = { 0 };
        const char *wanted = i % 2 ? rows[i / 2].form : rows[i / 2].path;
        assert_int_equal(url_decode(str_of(rows[i / 2].text), i % 2, &out), wanted != NULL);
        if (wanted)
            text_is(buffer_str(&out), wanted);
        buffer_release(&out);
    }
}

/* ---- places ---- */

static void clear_environment(void)
{
    static const char *const names[] = { "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN",
                                         "GS_ACCESS_KEY_ID", "GS_SECRET_ACCESS_KEY", "GOOGLE_OAUTH_ACCESS_TOKEN", "STORAGE_EMULATOR_HOST",
                                         "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN",
                                         "AZURE_STORAGE_SERVICE_ENDPOINT", "AZURE_STORAGE_CONNECTION_STRING",
                                         "HF_ENDPOINT" };
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        unsetenv(names[i]);
}

/* How the path that was given is asked for. */
static void encoded_is(const char *url, const char *encoded)
{
    struct remote_place place;
    CHECK_OK(remote_place_of(url, &place, &err));
    assert_string_equal(place.encoded, encoded);
    remote_place_release(&place);
}

static void place_is(const char *url, enum remote_kind kind, const char *name, const char *base, const char *path, const char *query,
                     bool is_folder)
{
    struct remote_place place;
    CHECK_OK(remote_place_of(url, &place, &err));
    assert_int_equal(place.kind, kind);
    assert_string_equal(place.name, name);
    assert_string_equal(place.base, base);
    assert_string_equal(place.path, path);
    assert_string_equal(place.query, query);
    assert_int_equal(place.is_folder, is_folder);
    remote_place_release(&place);
}

TEST(places_of_web_servers)
{
    clear_environment();
    place_is("https://h", REMOTE_HTTP, "https://h", "https://h/", "", "", true);
    place_is("https://h:8/a%20b/c", REMOTE_HTTP, "https://h:8", "https://h:8/", "a b/c", "", false);
    place_is("http://u:p@h/a/?q=1#f", REMOTE_HTTP, "http://h", "http://u:p@h/", "a", "?q=1", true);
    place_is("HTTPS://h/a?b/c", REMOTE_HTTP, "HTTPS://h", "HTTPS://h/", "a", "?b/c", false);
    place_is("https://h/o/a%2Fb?alt=media", REMOTE_HTTP, "https://h", "https://h/", "o/a/b", "?alt=media", false);
    encoded_is("https://h/o/a%2Fb%20c%2b/?q", "o/a%2Fb%20c%2b");
    encoded_is("https://h/a b+c=(d)@e\xC3\xA9[f]|", "a%20b+c=(d)@e%C3%A9%5Bf%5D%7C");
}

TEST(places_of_s3)
{
    clear_environment();
    place_is("s3://bucket/a b+%20/c", REMOTE_S3, "s3://bucket", "https://bucket.s3.us-east-1.amazonaws.com/", "a b+%20/c", "", false);
    setenv("AWS_DEFAULT_REGION", "eu-1", 1);
    place_is("s3://bucket/", REMOTE_S3, "s3://bucket", "https://bucket.s3.eu-1.amazonaws.com/", "", "", true);
    setenv("AWS_REGION", "eu-2", 1);
    place_is("s3://my.bucket/k/", REMOTE_S3, "s3://my.bucket", "https://s3.eu-2.amazonaws.com/my.bucket/", "k", "", true);
    encoded_is("s3://bucket/a b+%20/c", "a%20b%2B%2520/c");
    setenv("AWS_REGION", "cn-north-1", 1);
    place_is("s3://bucket/k", REMOTE_S3, "s3://bucket", "https://bucket.s3.cn-north-1.amazonaws.com.cn/", "k", "", false);
    place_is("s3://my.bucket/k", REMOTE_S3, "s3://my.bucket", "https://s3.cn-north-1.amazonaws.com.cn/my.bucket/", "k", "", false);
    setenv("AWS_ENDPOINT_URL", "http://h:9//", 1);
    place_is("s3://bucket/k", REMOTE_S3, "s3://bucket", "http://h:9/bucket/", "k", "", false);
    setenv("AWS_ENDPOINT_URL_S3", "http://s", 1);
    place_is("s3://bucket/k?q#f", REMOTE_S3, "s3://bucket", "http://s/bucket/", "k?q#f", "", false);
    setenv("AWS_ENDPOINT_URL_S3", "", 1); /* empty: as if it were not set */
    place_is("s3://bucket/k", REMOTE_S3, "s3://bucket", "http://h:9/bucket/", "k", "", false);
    clear_environment();
}

/* Its texts of the environment, or "". */
static void google_asks(const char *bearer, const char *key, const char *secret)
{
    struct remote_place place;
    CHECK_OK(remote_place_of("gs://bucket/k", &place, &err));
    assert_string_equal(place.identity.bearer ? place.identity.bearer : "", bearer);
    assert_string_equal(place.identity.key ? place.identity.key : "", key);
    assert_string_equal(place.identity.secret ? place.identity.secret : "", secret);
    assert_null(place.identity.session);
    assert_null(place.identity.region);
    remote_place_release(&place);
}

TEST(places_of_google)
{
    clear_environment();
    setenv("AWS_ENDPOINT_URL", "http://h:9", 1);
    setenv("AWS_SESSION_TOKEN", "s", 1);
    place_is("gs://bucket/a b+%20/c", REMOTE_S3, "gs://bucket", "https://storage.googleapis.com/bucket/", "a b+%20/c", "", false);
    place_is("gs://my.bucket/k/", REMOTE_S3, "gs://my.bucket", "https://storage.googleapis.com/my.bucket/", "k", "", true);
    google_asks("", "", "");
    setenv("GS_ACCESS_KEY_ID", "i", 1);
    setenv("GS_SECRET_ACCESS_KEY", "k", 1);
    google_asks("", "i", "k");
    setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "t", 1);
    google_asks("t", "", "");
    setenv("STORAGE_EMULATOR_HOST", "http://h:8/", 1);
    place_is("gs://bucket/k", REMOTE_S3, "gs://bucket", "http://h:8/bucket/", "k", "", false);
    clear_environment();
}

static void azure_asks(const char *account, const char *secret, const char *token)
{
    struct remote_place place;
    CHECK_OK(remote_place_of("az://container/k", &place, &err));
    assert_int_equal(place.identity.protocol, HTTP_AZURE);
    assert_string_equal(place.identity.key ? place.identity.key : "", account);
    assert_string_equal(place.identity.secret ? place.identity.secret : "", secret);
    assert_string_equal(place.identity.token ? place.identity.token : "", token);
    remote_place_release(&place);
}

TEST(places_of_azure)
{
    static const char *const base = "https://account.blob.core.windows.net/container/";
    struct remote_place place;
    clear_environment();
    CHECK_FAILS(remote_place_of("az://container/k", &place, &err), RESHARD_ERR_USAGE);
    remote_place_release(&place);
    setenv("AZURE_STORAGE_ACCOUNT", "account", 1);
    place_is("az://container/a b+%20/c", REMOTE_AZURE, "az://container", base, "a b+%20/c", "", false);
    place_is("az://container/k/", REMOTE_AZURE, "az://container", base, "k", "", true);
    azure_asks("", "", "");
    setenv("AZURE_STORAGE_KEY", "a2V5", 1);
    azure_asks("account", "a2V5", "");
    setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=a", 1);
    azure_asks("", "", "sv=1&sig=a");
    setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1", 1);
    azure_asks("", "", "sv=1");
    setenv("AZURE_STORAGE_SERVICE_ENDPOINT", "http://h:8/account/", 1);
    setenv("AZURE_STORAGE_ACCOUNT", "", 1);
    place_is("az://container/k", REMOTE_AZURE, "az://container", "http://h:8/account/container/", "k", "", false);
    setenv("AZURE_STORAGE_SAS_TOKEN", "", 1); /* a key is an account's */
    CHECK_FAILS(remote_place_of("az://container/k", &place, &err), RESHARD_ERR_USAGE);
    remote_place_release(&place);
    setenv("AZURE_STORAGE_ACCOUNT", "account", 1);
    setenv("AZURE_STORAGE_KEY", "a2V", 1);
    CHECK_FAILS(remote_place_of("az://container/k", &place, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "AZURE_STORAGE_KEY"));
    remote_place_release(&place);
    clear_environment();
}

static void connection_is(const char *connection, const char *server, const char *key, const char *secret, const char *token)
{
    char base[200];
    snprintf(base, sizeof(base), "%s/container/", server);
    setenv("AZURE_STORAGE_CONNECTION_STRING", connection, 1);
    place_is("az://container/k", REMOTE_AZURE, "az://container", base, "k", "", false);
    azure_asks(key, secret, token);
}

/* It goes before variables that say the same one by one. */
TEST(places_of_azure_by_a_connection_string)
{
    static const char *const bad[] = { "account", "AccountName", "AccountKey=a2V5", "BlobEndpoint=http://h;AccountKey=a2V5",
                                       "AccountName=account;AccountKey=a2V", "AccountName=no/account", "AccountName=account;BlobEndpoint=h",
                                       "AccountName=account;DefaultEndpointsProtocol=ftp", "UseDevelopmentStorage=false", ";" };
    struct remote_place place;
    clear_environment();
    setenv("AZURE_STORAGE_ACCOUNT", "other", 1);
    setenv("AZURE_STORAGE_KEY", "b3RoZXI=", 1);
    setenv("AZURE_STORAGE_SERVICE_ENDPOINT", "http://other", 1);
    connection_is("DefaultEndpointsProtocol=https;AccountName=account;AccountKey=a2V5;EndpointSuffix=core.windows.net",
                  "https://account.blob.core.windows.net", "account", "a2V5", "");
    connection_is("accountname=account;ACCOUNTKEY=a2V5a2V5Cg==;;Other=x=y;", "https://account.blob.core.windows.net", "account",
                  "a2V5a2V5Cg==", "");
    connection_is("AccountName=account;DefaultEndpointsProtocol=http;EndpointSuffix=core.chinacloudapi.cn",
                  "http://account.blob.core.chinacloudapi.cn", "", "", "");
    connection_is("BlobEndpoint=http://h:8/account/;SharedAccessSignature=?sv=1&sig=a%3D", "http://h:8/account", "", "", "sv=1&sig=a%3D");
    connection_is("AccountName=account;AccountKey=a2V;SharedAccessSignature=sv=1", "https://account.blob.core.windows.net", "", "", "sv=1");
    connection_is("UseDevelopmentStorage=true", "http://127.0.0.1:10000/devstoreaccount1", "devstoreaccount1",
                  "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==", "");
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        setenv("AZURE_STORAGE_CONNECTION_STRING", bad[i], 1);
        CHECK_FAILS(remote_place_of("az://container/k", &place, &err), RESHARD_ERR_USAGE);
        assert_non_null(strstr(err.message, "AZURE_STORAGE_CONNECTION_STRING"));
        assert_null(strstr(err.message, "a2V"));
        remote_place_release(&place);
    }
    clear_environment();
}

/* The signature is that of Azure's own library for Python (azure-storage-blob 12.31), for what it calls the same request. */
TEST(requests_to_azure_are_signed)
{
    struct buffer date = { 0 }, text = { 0 }, authorization = { 0 };
    const struct azure_request request = { .account = "account1",
                                           .secret = "AAECAwQFBgcICQoLDA0ODw==",
                                           .url = "https://account1.blob.core.windows.net/c"
                                                  "?comp=list&delimiter=%2F&prefix=a%20b%2F&restype=container",
                                           .range = "bytes=0-9",
                                           .etag = "\"e\"",
                                           .date = "Sun, 29 Nov 2026 03:11:03 GMT" };
    assert_true(azure_date(1795921863, &date));
    text_is(buffer_str(&date), request.date);
    assert_true(azure_text_to_sign(&request, &text));
    text_is(buffer_str(&text), "GET\n\n\n\n\n\n\n\n\"e\"\n\n\nbytes=0-9\nx-ms-date:Sun, 29 Nov 2026 03:11:03 GMT\nx-ms-version:2021-08-06\n"
                               "/account1/c\ncomp:list\ndelimiter:/\nprefix:a b/\nrestype:container");
    assert_true(azure_authorization(&request, &authorization));
    text_is(buffer_str(&authorization), "SharedKey account1:nhkgHiIt4Qu3yyCoMp51ikXOgxwLz1S6wu5YsUnOxmo=");
    buffer_release(&date);
    buffer_release(&text);
    buffer_release(&authorization);
}

TEST(places_of_hubs)
{
    struct remote_place place;
    clear_environment();
    place_is("hf://o/r", REMOTE_HUB, "hf://o/r@main", "https://huggingface.co/o/r/resolve/main/", "", "", true);
    setenv("HF_ENDPOINT", "http://h/", 1);
    place_is("hf://o/r@v 1/a/b%20", REMOTE_HUB, "hf://o/r@v 1", "http://h/o/r/resolve/v%201/", "a/b%20", "", false);
    CHECK_OK(remote_place_of("hf://o/r@v1/x", &place, &err));
    assert_string_equal(place.listing, "http://h/api/models/o/r/tree/v1");
    assert_string_equal(place.revision, "http://h/api/models/o/r/revision/v1");
    CHECK_OK(remote_place_pin(&place, STR(COMMIT), &err));
    assert_string_equal(place.listing, "http://h/api/models/o/r/tree/" COMMIT);
    assert_string_equal(place.base, "http://h/o/r/resolve/" COMMIT "/");
    remote_place_release(&place);
    CHECK_OK(remote_place_of("hf://o/r@" COMMIT, &place, &err));
    assert_null(place.revision); /* it is one already */
    remote_place_release(&place);
    place_is("hf://o/r@refs/pr/1", REMOTE_HUB, "hf://o/r@refs/pr/1", "http://h/o/r/resolve/refs%2Fpr%2F1/", "", "", true);
    place_is("hf://o/r@refs/pr/1/a/b", REMOTE_HUB, "hf://o/r@refs/pr/1", "http://h/o/r/resolve/refs%2Fpr%2F1/", "a/b", "", false);
    place_is("hf://o/r@refs/convert/parquet/a/", REMOTE_HUB, "hf://o/r@refs/convert/parquet",
             "http://h/o/r/resolve/refs%2Fconvert%2Fparquet/", "a", "", true);
    place_is("hf://o/r@refs%2fpr%2F1/a", REMOTE_HUB, "hf://o/r@refs%2fpr%2F1", "http://h/o/r/resolve/refs%2Fpr%2F1/", "a", "", false);
    place_is("hf://o/r@a%2Fb%20c/a", REMOTE_HUB, "hf://o/r@a%2Fb%20c", "http://h/o/r/resolve/a%2Fb%2520c/", "a", "", false);
    place_is("hf://o/r@refs/heads/x", REMOTE_HUB, "hf://o/r@refs", "http://h/o/r/resolve/refs/", "heads/x", "", false);
    place_is("hf://o/r@refs/pr/", REMOTE_HUB, "hf://o/r@refs", "http://h/o/r/resolve/refs/", "pr", "", true);
    place_is("hf://o/r/a@b", REMOTE_HUB, "hf://o/r@main", "http://h/o/r/resolve/main/", "a@b", "", false);
    clear_environment();
}

TEST(what_is_no_place)
{
    static const char *const bad[] = { "https://", "https:///a", "https://h/%zz", "https://h/../a", "https://h/a%00", "https://h/a//b",
                                       "https://h/a%5Cb", "s3://", "s3://b", "s3://b/", "s3://bu ket/k", "s3:///k", "s3://bucket/a/../b",
                                       "s3://bucket/a//b", "gs://", "gs:///k", "gs://bucket/../b", "az://", "az://c", "az:///k",
                                       "az://container/../b", "hf://", "hf://o", "hf://o/", "hf:///r", "hf://o/r@", "hf://o/@v",
                                       "hf://../r", "hf://o/r@../x", "hf://o/r/../x", "hf://o/r@..%2Fx",
                                       "hf://o/r@%2Fx", "hf://o/r@refs/pr/../x", "hf://o/r@x%2F" };
    static const char *const unknown[] = { "gcs://b/k", "ftp://h/a", "file:///a", "abfs://c/b" };
    struct remote_place place;
    clear_environment();
    setenv("AZURE_STORAGE_ACCOUNT", "account", 1);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        CHECK_FAILS(remote_place_of(bad[i], &place, &err), RESHARD_ERR_USAGE);
        remote_place_release(&place);
    }
    for (size_t i = 0; i < sizeof(unknown) / sizeof(*unknown); i++) {
        CHECK_FAILS(remote_place_of(unknown[i], &place, &err), RESHARD_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.message, unknown[i]));
        remote_place_release(&place);
    }
}

/* ---- blocks ---- */

TEST(blocks_are_kept_and_the_oldest_goes)
{
    static struct block_cache cache;
    static uint8_t bytes[BLOCK_BYTES], out[8];
    assert_true(block_cache_init(&cache));
    assert_false(block_cache_get(&cache, 1, 0, 0, out, 1));
    for (uint64_t i = 0; i < BLOCK_COUNT; i++) {
        bytes[0] = (uint8_t)i;
        block_cache_put(&cache, 1, i, bytes, i == 5 ? 4 : BLOCK_BYTES);
    }
    assert_true(block_cache_get(&cache, 1, 0, 0, out, 8)); /* used now: block 1 is the oldest */
    assert_int_equal(out[0], 0);
    assert_true(block_cache_get(&cache, 1, 5, 0, out, 4));
    assert_int_equal(out[0], 5);
    assert_false(block_cache_get(&cache, 1, 5, 0, out, 5) || block_cache_get(&cache, 1, 5, 4, out, 1));
    assert_false(block_cache_get(&cache, 1, 5, SIZE_MAX, out, 1));
    assert_true(block_cache_get(&cache, 1, 5, 4, out, 0));
    assert_true(block_cache_get(&cache, 1, 2, BLOCK_BYTES - 8, out, 8));
    assert_false(block_cache_get(&cache, 2, 2, 0, out, 1));
    bytes[0] = 99;
    block_cache_put(&cache, 2, 2, bytes, BLOCK_BYTES);
    assert_false(block_cache_get(&cache, 1, 1, 0, out, 1));
    assert_true(block_cache_get(&cache, 1, 0, 0, out, 1) && block_cache_get(&cache, 2, 2, 0, out, 1));
    assert_int_equal(out[0], 99);
    bytes[0] = 98;
    block_cache_put(&cache, 2, 2, bytes, 1); /* in its own place */
    assert_true(block_cache_get(&cache, 2, 2, 0, out, 1) && !block_cache_get(&cache, 2, 2, 0, out, 2));
    assert_int_equal(out[0], 98);
    assert_true(block_cache_get(&cache, 1, 3, 0, out, 1));
    block_cache_release(&cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(objects_and_folders_of_s3),
        cmocka_unit_test(a_list_of_s3_goes_on),
        cmocka_unit_test(what_is_no_list_of_s3),
        cmocka_unit_test(characters_of_xml),
        cmocka_unit_test(objects_and_folders_of_azure),
        cmocka_unit_test(an_empty_object_gives_way_to_its_folder),
        cmocka_unit_test(texts_of_elements),
        cmocka_unit_test(files_and_folders_of_a_hub),
        cmocka_unit_test(what_is_no_list_of_a_hub),
        cmocka_unit_test(commits_of_a_hub),
        cmocka_unit_test(links_of_a_page),
        cmocka_unit_test(every_byte_is_encoded_and_back),
        cmocka_unit_test(what_is_decoded),
        cmocka_unit_test(places_of_web_servers),
        cmocka_unit_test(places_of_s3),
        cmocka_unit_test(places_of_google),
        cmocka_unit_test(places_of_azure),
        cmocka_unit_test(places_of_azure_by_a_connection_string),
        cmocka_unit_test(requests_to_azure_are_signed),
        cmocka_unit_test(places_of_hubs),
        cmocka_unit_test(what_is_no_place),
        cmocka_unit_test(blocks_are_kept_and_the_oldest_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
